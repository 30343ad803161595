// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/cache_metrics.hpp>

#include "serve/request_options.hpp"
#include "stats/stats_text.hpp"
#include "tier/transfer_names.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using detail::PrometheusText;

/// A tier below the device, and its work now.
struct Tier {
  Medium medium = Medium::host;
  std::int64_t capacity_bytes = 0;
  TierUsage usage;
};

std::vector<Tier> tiers_of(RequestCache& cache) {
  std::vector<Tier> tiers;
  const TierOptions& options = cache.options().tiers;
  const auto add = [&](Medium medium, std::int64_t capacity_bytes) {
    if (capacity_bytes > 0) tiers.push_back({medium, capacity_bytes, cache.tiers()->usage(medium)});
  };
  if (cache.tiers() == nullptr) return tiers;
  add(Medium::host, options.host_bytes);
  add(Medium::file, options.file_bytes);
  add(Medium::remote, options.remote_bytes);
  return tiers;
}

void add_info(PrometheusText& text, const RequestCacheOptions& options) {
  text.begin_gauge("info", "Always 1: the library and the kind of the cache.");
  text.add(std::int64_t{1}, {{"version", STATEPORT_VERSION},
                             {"index", options.index == CacheIndex::hash ? "hash" : "tree"},
                             {"layout", in_columns(options) ? "columns" : "slots"},
                             {"block_size_tokens", std::to_string(options.block_size_tokens)}});
}

void add_sources(PrometheusText& text, const CacheStats& stats, bool has_tiers) {
  text.begin_counter("source_tokens_total",
                     "Tokens of prompts by where they came from; computed: by the engine. Their sum is prompt_tokens.");
  const std::int64_t loaded = std::accumulate(stats.loaded_tokens.begin(), stats.loaded_tokens.end(), std::int64_t{0});
  text.add(stats.prompt_tokens - stats.hit_tokens, {{"source", "computed"}});
  text.add(stats.hit_tokens - loaded, {{"source", name(Medium::device)}});
  for (std::size_t medium = 1; has_tiers && medium < stats.loaded_tokens.size(); ++medium)
    text.add(stats.loaded_tokens[medium], {{"source", name(static_cast<Medium>(medium))}});
}

void add_requests(PrometheusText& text, const RequestCache& cache) {
  text.begin_gauge("running_requests", "Requests that started and did not end.");
  text.add(std::int64_t{cache.running_requests()});
  const WaitingRequests waiting = cache.usage().waiting;
  text.begin_gauge("waiting_requests", "Requests that no pass can run yet, by what they wait for.");
  text.add(std::int64_t{waiting.for_answers}, {{"for", "answers"}});
  text.add(std::int64_t{waiting.for_loads}, {{"for", "loads"}});
  text.add(std::int64_t{waiting.for_requests}, {{"for", "requests"}});
}

/// The default of MemoryCost is a ratio for policies: no model has states so small.
bool knows_bytes(const MemoryCost& memory) {
  return memory.state_bytes != MemoryCost{}.state_bytes || memory.kv_bytes_per_token != MemoryCost{}.kv_bytes_per_token;
}

/// Of states on the device. In columns a state of every group is in a block of its own; blocks of all groups count
/// alike.
std::int64_t state_bytes(const RequestCacheOptions& options, std::int64_t states) {
  return options.memory.of(0, states) / static_cast<std::int64_t>(group_count(options));
}

void add_capacity_of_device(PrometheusText& text, RequestCache& cache) {
  const RequestCacheOptions& options = cache.options();
  const SlotLayout& slots = slot_layout(options);
  const auto add = [&](std::int64_t bytes, std::string_view content) {
    text.add(bytes, {{"tier", name(Medium::device)}, {"content", content}});
  };
  if (!knows_bytes(options.memory)) return;
  if (cache.arena() != nullptr) return add(slots.arena.bytes, "all");
  if (slots.budget_bytes > 0) add(slots.budget_bytes, "all");
  add(options.memory.of(std::int64_t{kv_blocks(options)} * options.block_size_tokens, 0), "kv");
  std::int64_t states = slots.checkpoints;
  for (const StateGroup& group : column_layout(options).groups) states += group.blocks - detail::reserved_state_blocks;
  add(state_bytes(options, states), "state");
}

void add_contents(PrometheusText& text, RequestCache& cache, std::span<const Tier> tiers) {
  const RequestCacheOptions& options = cache.options();
  const CacheUsage usage = cache.usage();
  text.begin_gauge("states", "States that are cached; on the device in columns with those of running requests.");
  text.add(usage.states, {{"tier", name(Medium::device)}});
  for (const Tier& tier : tiers) text.add(tier.usage.states, {{"tier", name(tier.medium)}});
  text.begin_gauge("kv_tokens", "Tokens whose KV is cached; on the device with those of running requests.");
  text.add(usage.kv_tokens, {{"tier", name(Medium::device)}});
  for (const Tier& tier : tiers)
    text.add(tier.usage.kv_blocks * options.block_size_tokens, {{"tier", name(tier.medium)}});
  text.begin_gauge("used_bytes", "Bytes of cached contents. A tier counts both contents together.");
  if (knows_bytes(options.memory)) {
    text.add(options.memory.of(usage.kv_tokens, 0), {{"tier", name(Medium::device)}, {"content", "kv"}});
    text.add(state_bytes(options, usage.states), {{"tier", name(Medium::device)}, {"content", "state"}});
  }
  for (const Tier& tier : tiers) text.add(tier.usage.bytes, {{"tier", name(tier.medium)}, {"content", "all"}});
  text.begin_gauge("capacity_bytes", "Bytes that there is room for; the content all is room for both together.");
  add_capacity_of_device(text, cache);
  for (const Tier& tier : tiers) text.add(tier.capacity_bytes, {{"tier", name(tier.medium)}, {"content", "all"}});
  text.begin_counter("evicted_states_total", "States that lost their place to others.");
  text.add(usage.evicted_states, {{"tier", name(Medium::device)}});
  for (const Tier& tier : tiers) text.add(tier.usage.evicted_states, {{"tier", name(tier.medium)}});
  text.begin_counter("evicted_kv_tokens_total", "Tokens whose KV lost its place on the device to others.");
  text.add(usage.evicted_kv_tokens);
}

/// One of the directions of traffic, and its name.
struct Direction {
  std::string_view name;
  TierTraffic TierUsage::*traffic;
  bool is_of_remote = false;  ///< alone
};
constexpr std::array directions = {Direction{"read", &TierUsage::reads}, Direction{"write", &TierUsage::writes},
                                   Direction{"find", &TierUsage::finds, true}};

/// Calls add(traffic, tier, direction) for each direction of each tier.
template <class Add>
void for_each_traffic(std::span<const Tier> tiers, Add&& add) {
  for (const Tier& tier : tiers)
    for (const Direction& direction : directions)
      if (!direction.is_of_remote || tier.medium == Medium::remote)
        add(tier.usage.*direction.traffic, name(tier.medium), direction.name);
}

void add_traffic(PrometheusText& text, std::span<const Tier> tiers) {
  text.begin_gauge("transfers", "Transfers that were decided and have not ended.");
  for_each_traffic(tiers, [&](const TierTraffic& traffic, std::string_view tier, std::string_view direction) {
    text.add(traffic.transfers, {{"tier", tier}, {"direction", direction}});
  });
  text.begin_gauge("transfer_bytes", "Bytes of these transfers.");
  for_each_traffic(tiers, [&](const TierTraffic& traffic, std::string_view tier, std::string_view direction) {
    if (direction != "find") text.add(traffic.bytes, {{"tier", tier}, {"direction", direction}});
  });
  text.begin_counter("ended_transfers_total", "Transfers that ended, by how they did.");
  for_each_traffic(tiers, [&](const TierTraffic& traffic, std::string_view tier, std::string_view direction) {
    for (std::size_t status = 0; status < traffic.ended.size(); ++status)
      text.add(traffic.ended[status],
               {{"tier", tier}, {"direction", direction}, {"status", name(static_cast<TransferStatus>(status))}});
  });
  text.begin_counter("transferred_bytes_total", "Bytes of transfers that are done.");
  for (const Tier& tier : tiers) {
    text.add(tier.usage.bytes_read, {{"tier", name(tier.medium)}, {"direction", "read"}});
    text.add(tier.usage.bytes_written, {{"tier", name(tier.medium)}, {"direction", "write"}});
  }
}

void add_losses_of_tiers(PrometheusText& text, std::span<const Tier> tiers) {
  const auto add = [&](std::string_view metric, std::string_view help, std::int64_t TierUsage::*count) {
    text.begin_counter(metric, help);
    for (const Tier& tier : tiers) text.add(tier.usage.*count, {{"tier", name(tier.medium)}});
  };
  add("loads_total", "Requests and prefetches that loaded something from the tier, from no slower one.",
      &TierUsage::loads);
  add("dropped_states_total", "States that came to the tier and were not worth their place.",
      &TierUsage::dropped_states);
  add("refused_images_total", "Images that found no room or no place in the queue, or were not written.",
      &TierUsage::refused_images);
  add("lost_images_total", "Images that a load or a copy did not find as they should be.", &TierUsage::lost_images);
}

void add_integrity(PrometheusText& text, const IntegrityUsage& usage) {
  constexpr std::array faults = {"changed", "other_state", "not_finite"};
  static_assert(faults.size() == std::tuple_size_v<decltype(IntegrityUsage::faults)>);
  text.begin_counter("state_checks_total", "Checks of checkpoints, when they are published and when they are read.");
  text.add(usage.published, {{"kind", "published"}});
  text.add(usage.reads, {{"kind", "read"}});
  text.begin_counter("state_faults_total", "Checkpoints that a check found wrong.");
  for (std::size_t kind = 0; kind < faults.size(); ++kind) text.add(usage.faults[kind], {{"kind", faults[kind]}});
  text.begin_counter("withdrawn_states_total", "Checkpoints that were taken back because of such a fault.");
  text.add(usage.withdrawn_states);
  text.begin_counter("unchecked_states_total", "Checkpoints that found no room in the list of checks.");
  text.add(usage.unchecked_states);
}

}  // namespace

std::string to_prometheus(RequestCache& cache, std::string_view prefix) {
  PrometheusText text(prefix);
  const std::vector<Tier> tiers = tiers_of(cache);
  add_info(text, cache.options());
  detail::add_stats(text, cache.stats());
  add_sources(text, cache.stats(), !tiers.empty());
  add_requests(text, cache);
  add_contents(text, cache, tiers);
  if (!tiers.empty()) add_traffic(text, tiers);
  if (!tiers.empty()) add_losses_of_tiers(text, tiers);
  if (const CacheIntegrity* const integrity = cache.integrity()) add_integrity(text, integrity->usage());
  return std::move(text).take();
}

}  // namespace stateport
