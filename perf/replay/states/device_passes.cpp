// SPDX-License-Identifier: Apache-2.0
#include "states/device_passes.hpp"

#include <stateport/core/model/error.hpp>

#include "states/scaled_spec.hpp"

#include <algorithm>
#include <chrono>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

StateSpec spec_in_memory(const StateSpec& full, const DevicePassesOptions& options) {
  const auto states = static_cast<std::size_t>(state_slots(options.cache) + scratch_slots(options.cache));
  return scale_to_fit(full, options.materialize_bytes / states);
}

}  // namespace

DevicePasses::DevicePasses(MemoryResource& resource, const StateSpec& full, const DevicePassesOptions& options)
    : stream_(Stream::create()),
      states_(resource, spec_in_memory(full, options), {.slots = state_slots(options.cache)}, stream_),
      scratch_(scratch_slots(options.cache) == 0
                   ? std::optional<StateStore>()
                   : std::optional<StateStore>(std::in_place, resource, states_.spec(),
                                               StoreOptions{.slots = scratch_slots(options.cache)}, stream_)),
      copier_(states_),
      model_(resource, states_, scratch_ ? &*scratch_ : nullptr, options.history_tokens, options.cache.drafts, stream_),
      plant_wrong_slot_(options.plant_wrong_slot) {
  if (scratch_) committer_.emplace(*scratch_, states_, states_);
  counts_.state_bytes = spec().slot_bytes();
}

template <class Call>
void DevicePasses::timed(double& seconds, const Call& call) {
  const Clock::time_point begin = Clock::now();
  call();
  stream_.synchronize();
  seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void DevicePasses::before(const PassPlan& plan) {
  const GroupPlan& group = plan.groups.front();
  timed(counts_.copy_seconds, [&] {
    if (!group.clear.empty()) copier_.clear_slots(stream_, group.clear);
    if (!group.copies.empty()) copier_.copy_shifted(stream_, group.copies);
  });
}

void DevicePasses::forward(const PassForward& forward) {
  timed(counts_.forward_seconds, [&] { model_.forward(stream_, forward); });
}

void DevicePasses::after(const PassCommit& commit) {
  const GroupCommit& group = commit.groups.front();
  counts_.commits += commit.published_states;
  timed(counts_.copy_seconds, [&] {
    if (committer_)
      committer_->commit_scratch(stream_, group.from_scratch, group.copies);
    else if (!group.copies.empty())
      copier_.copy_shifted(stream_, group.copies);
  });
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
  const std::int32_t slots = states_.slots() + (scratch_ ? scratch_->slots() : 0);
  return static_cast<std::size_t>(slots) * spec().slot_bytes();
}

}  // namespace stateport::replay
