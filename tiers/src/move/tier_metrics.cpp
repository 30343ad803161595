// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/tier_metrics.hpp>

#include "stats/prometheus_text.hpp"
#include "tier/transfer_names.hpp"

#include <array>
#include <cstdint>
#include <utility>

namespace stateport {
namespace {

using detail::PrometheusText;

void add_contents(PrometheusText& text, const StateTiers& tiers) {
  const HostTier::Usage& host = tiers.host().usage();
  const FileTier* const files = tiers.files();
  const FileTierStatistics in_files = files != nullptr ? files->statistics() : FileTierStatistics{};
  text.begin_gauge("images", "Images that lie in the tier.");
  text.add(std::int64_t{host.images}, {{"tier", name(Medium::host)}});
  if (files != nullptr) text.add(static_cast<std::int64_t>(in_files.images), {{"tier", name(Medium::file)}});
  text.begin_gauge("image_bytes", "Bytes of these images; of files with those of writes under way.");
  text.add(static_cast<std::int64_t>(host.image_bytes), {{"tier", name(Medium::host)}});
  if (files != nullptr) text.add(static_cast<std::int64_t>(in_files.held_bytes), {{"tier", name(Medium::file)}});
  text.begin_gauge("transfers_in_flight", "Transfers that are not answered, or whose memory is still in use.");
  text.add(static_cast<std::int64_t>(tiers.in_flight()));
}

void add_times(PrometheusText& text, const StateTiers& tiers) {
  using Direction = TransferTimes::Direction;
  const auto add = [&](Medium tier, Direction direction, std::string_view direction_name) {
    text.add(tiers.times().of(tier, direction), {{"tier", name(tier)}, {"direction", direction_name}});
  };
  text.begin_histogram("transfer_seconds", "Time from the begin of a transfer to the poll that found it done.");
  add(Medium::host, Direction::store, "store");
  for (const Medium tier : {Medium::file, Medium::remote}) {
    if (tier == Medium::file ? tiers.files() == nullptr : tiers.remote() == nullptr) continue;
    add(tier, Direction::load, "load");
    add(tier, Direction::store, "store");
    if (tier == Medium::remote) add(tier, Direction::find, "find");
  }
}

void add_remote(PrometheusText& text, const RemoteTierStatistics& remote) {
  text.begin_counter("refused_remote_requests_total", "Requests that found no room in the queue of the shared store.");
  text.add(static_cast<std::int64_t>(remote.refused_reads), {{"direction", "load"}});
  text.add(static_cast<std::int64_t>(remote.refused_writes), {{"direction", "store"}});
  text.add(static_cast<std::int64_t>(remote.refused_finds), {{"direction", "find"}});
  text.begin_counter("removed_objects_total", "Objects of the shared store whose content did not fit their name.");
  text.add(static_cast<std::int64_t>(remote.removed_objects));
}

}  // namespace

std::string to_prometheus(const StateTiers& tiers, std::string_view prefix) {
  PrometheusText text(prefix);
  add_contents(text, tiers);
  add_times(text, tiers);
  if (tiers.remote() != nullptr) add_remote(text, tiers.remote()->statistics());
  return std::move(text).take();
}

}  // namespace stateport
