// SPDX-License-Identifier: Apache-2.0
#include "states/device_passes.hpp"

#include <stateport/core/model/error.hpp>

#include "states/scaled_spec.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t copies_per_peer_sample = 4;  // a sample costs as much as the copy that it is compared with

/// Enough for the host's caches to forget, small beside the states.
std::int32_t peer_images(const DevicePassesOptions& options) {
  constexpr std::int32_t least = 4;
  constexpr std::int32_t most = 4096;
  return options.against_memcpy ? std::clamp(options.room.slots / 8, least, most) : 0;
}

StateSpec spec_in_memory(const StateSpec& full, const DevicePassesOptions& options) {
  const std::int64_t peers = options.against_memcpy ? std::int64_t{peer_images(options)} + 1 : 0;
  const StateRoom& room = options.room;
  const std::int64_t states = std::int64_t{room.slots} + room.scratch_slots + room.checkpoint_slots + peers;
  return scale_to_fit(full, options.materialize_bytes / static_cast<std::size_t>(states));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

DevicePasses::DevicePasses(MemoryResource& resource, const StateSpec& full, const DevicePassesOptions& options)
    : stream_(Stream::create()),
      states_(resource, spec_in_memory(full, options), {.slots = options.room.slots}, stream_),
      scratch_(options.room.scratch_slots == 0
                   ? std::optional<StateStore>()
                   : std::optional<StateStore>(std::in_place, resource, states_.spec(),
                                               StoreOptions{.slots = options.room.scratch_slots}, stream_)),
      separate_(options.room.checkpoint_slots == 0
                    ? std::optional<StateStore>()
                    : std::optional<StateStore>(std::in_place, resource,
                                                quantised(states_.spec(), options.checkpoint_type.value()),
                                                StoreOptions{.slots = options.room.checkpoint_slots}, stream_)),
      copier_(states_),
      restorer_(checkpoints(), states_),
      keeper_(states_, checkpoints()),
      model_(resource, states_, scratch_ ? &*scratch_ : nullptr,
             separate_ ? PassStandIn::Numbers::exact : PassStandIn::Numbers::bits, options.history_tokens,
             options.drafts, stream_),
      peer_images_(peer_images(options)),
      plant_wrong_slot_(options.plant_wrong_slot) {
  require(!plant_wrong_slot_ || options.room.slots > 2, "slots", options.room.slots, "at least 3 to plant a wrong one");
  require(!plant_wrong_slot_ || !separate_, "plant_wrong_slot", plant_wrong_slot_, "is for one store");
  if (scratch_) committer_.emplace(*scratch_, states_, checkpoints());
  if (options.against_memcpy) peer_.emplace(resource, spec(), static_cast<std::size_t>(peer_images_), stream_);
  counts_.state_bytes = spec().slot_bytes();
  counts_.copy_bytes = spec().slot_bytes() + checkpoints().spec().slot_bytes();
  if (options.host_states + options.file_states > 0) make_tiers(options);
}

/// Whatever the cache has room for, the tiers have, too.
void DevicePasses::make_tiers(const DevicePassesOptions& options) {
  const std::size_t image_bytes = ImageLayout(checkpoints().spec(), {}).image_bytes();
  StateTiersOptions tiers{.states = {&checkpoints()},
                          .host_budget_bytes = static_cast<std::size_t>(options.host_states) * image_bytes};
  if (options.file_states > 0)
    tiers.files = FileTierOptions{.folder = options.file_folder,
                                  .capacity_bytes = static_cast<std::uint64_t>(options.file_states + 1) * image_bytes,
                                  .queue_bytes = std::size_t{1} << 30};
  tiers_.emplace(host_memory_, tiers);
}

/// Returns the seconds that the call took, which it adds to `seconds`.
template <class Call>
double DevicePasses::timed(double& seconds, const Call& call) {
  const Clock::time_point begin = Clock::now();
  call();
  stream_.synchronize();
  const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
  seconds += taken;
  return taken;
}

void DevicePasses::compare(std::size_t states, double seconds, bool restores) {
  if (!peer_ || states == 0 || copies_++ % copies_per_peer_sample != 0) return;
  if (states > static_cast<std::size_t>(peer_images_)) return;
  const double peer = restores ? peer_->restore_seconds(stream_, states) : peer_->commit_seconds(stream_, states);
  shares_of_memcpy_.push_back(peer / seconds);
}

void DevicePasses::before(const PassPlan& plan) {
  const GroupPlan& group = plan.groups.front();
  double clearing = 0;
  if (!group.clear.empty()) timed(clearing, [&] { copier_.clear_slots(stream_, group.clear); });
  if (group.copies.empty()) return;
  const double seconds = timed(counts_.copy_seconds, [&] { restorer_.copy_shifted(stream_, group.copies); });
  compare(group.copies.size(), seconds, true);
}

void DevicePasses::forward(const PassForward& forward) {
  timed(counts_.forward_seconds, [&] { model_.forward(stream_, forward); });
}

void DevicePasses::after(const PassCommit& commit) {
  const GroupCommit& group = commit.groups.front();
  counts_.commits += commit.published_states;
  const std::size_t states = group.from_scratch.size() + group.copies.size();
  if (states == 0) return;
  const double seconds = timed(counts_.copy_seconds, [&] {
    if (committer_)
      committer_->commit_scratch(stream_, group.from_scratch, group.copies);
    else
      keeper_.copy_shifted(stream_, group.copies);
  });
  compare(states, seconds, false);
}

void DevicePasses::after_end(CopyPlan copies) {
  if (!copies.empty()) timed(counts_.copy_seconds, [&] { keeper_.copy_shifted(stream_, copies); });
}

void DevicePasses::transfer(TransferPlan transfers, std::vector<TransferResult>& answers) {
  moves_.clear();
  for (const Transfer& transfer : transfers) {
    const bool answered = transfer.kind != Transfer::Kind::drop;
    if (transfer.image.content == CacheContent::state)
      moves_.push_back(transfer);
    else if (answered)
      answers.push_back({.id = transfer.id});
  }
  if (moves_.empty()) return;
  timed(counts_.transfer_seconds, [&] {
    tiers_->execute(stream_, {moves_});
    std::array<TransferResult, 64> results;
    while (tiers_->in_flight() > 0)
      for (const TransferResult& result : std::span(results).first(tiers_->poll(stream_, results))) {
        answers.push_back(result);
        ++counts_.transfers;
      }
  });
  std::ranges::sort(answers, {}, &TransferResult::id);  // as if nothing were moved
}

MoverCounts DevicePasses::counts() const {
  MoverCounts counts = counts_;
  counts.copy_share_of_memcpy = median(shares_of_memcpy_);
  return counts;
}

std::uint64_t DevicePasses::check(const RowState& state, std::span<const Content> window, bool restored) {
  if (restored && plant_wrong_slot_ && counts_.restores == 0) plant(state.recurrent_source());
  counts_.restores += restored;
  std::uint64_t wrong_words = 0;
  timed(counts_.verify_seconds, [&] {
    wrong_words = model_.count_wrong_words(stream_, state.conv_source().value(), state.read_bias,
                                           state.recurrent_source().value(), window);
  });
  ++counts_.verified;
  counts_.mismatches += wrong_words != 0;
  return wrong_words;
}

/// The slot gets the state of another one.
void DevicePasses::plant(SlotId slot) {
  const SlotCopy wrong = SlotCopy::whole(slot.value() == 1 ? 2 : 1, slot.value());
  copier_.copy_slots(stream_, {&wrong, 1});
  stream_.synchronize();
}

std::size_t DevicePasses::memory_bytes() const noexcept {
  const std::int32_t peers = peer_ ? peer_images_ + 1 : 0;
  const std::int32_t slots = states_.slots() + (scratch_ ? scratch_->slots() : 0) + peers;
  return static_cast<std::size_t>(slots) * spec().slot_bytes();
}

}  // namespace stateport::replay
