// SPDX-License-Identifier: Apache-2.0
#include "states/device_states.hpp"

#include <stateport/core/model/error.hpp>

#include "states/scaled_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int32_t live_slots = 4;
constexpr std::int64_t copies_per_peer_sample = 4;  // a sample costs as much as the copy that it is compared with

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

/// How many states each user of memory gets.
struct DeviceStates::Shares {
  std::int32_t scratch_rows;
  std::int32_t peer_images;

  explicit Shares(std::int32_t slots)
      // A chunk of the forward makes up to this many checkpoints; more of them go into further chunks.
      : scratch_rows(std::clamp(slots / 8, 2, 64)),
        // Enough for caches to forget, small beside the pool.
        peer_images(std::clamp(slots / 8, 4, 4096)) {}

  [[nodiscard]] std::size_t states(std::int32_t slots) const {
    return static_cast<std::size_t>(slots) + static_cast<std::size_t>(live_slots + scratch_rows + peer_images + 1);
  }
};

DeviceStates::DeviceStates(MemoryResource& resource, const StateSpec& full, const DeviceStatesOptions& options)
    : DeviceStates(resource,
                   scale_to_fit(full, options.materialize_bytes / Shares(options.slots).states(options.slots)), options,
                   Shares(options.slots)) {}

DeviceStates::DeviceStates(MemoryResource& resource, const StateSpec& spec, const DeviceStatesOptions& options,
                           const Shares& shares)
    : stream_(Stream::create()),
      pool_(resource, spec, {.slots = options.slots}, stream_),
      live_(resource, spec, {.slots = live_slots}, stream_),
      scratch_(resource, spec, {.slots = shares.scratch_rows}, stream_),
      restorer_(pool_, live_),
      committer_(scratch_, live_, pool_),
      model_(resource, live_, scratch_, stream_),
      peer_(resource, spec, static_cast<std::size_t>(shares.peer_images), stream_),
      peer_images_(static_cast<std::size_t>(shares.peer_images)),
      plant_wrong_slot_(options.plant_wrong_slot) {
  require(!plant_wrong_slot_ || options.slots > 1, "slots", options.slots, "at least 2 to plant a wrong one");
  const auto rows = static_cast<std::size_t>(shares.scratch_rows);
  rows_.reserve(rows);
  intermediates_.reserve(rows);
  counts_.state_bytes = spec.slot_bytes();
}

std::uint64_t DeviceStates::start(SlotId slot, Content at) {
  live_slot_ = (live_slot_ + 1) % live_slots;
  if (!slot.valid()) {
    const SlotId live(live_slot_);
    restorer_.clear_slots(stream_, {&live, 1});
    return 0;
  }
  restore(slot);
  const Clock::time_point begin = Clock::now();
  const std::uint64_t wrong_words = model_.count_wrong_words(stream_, live_slot_, at);
  counts_.verify_seconds += seconds_since(begin);
  ++counts_.verified;
  counts_.mismatches += wrong_words != 0;
  return wrong_words;
}

void DeviceStates::restore(SlotId slot) {
  std::int32_t source = slot.value();
  if (plant_wrong_slot_ && counts_.restores == 0) source = (source + 1) % pool_.slots();
  const SlotCopy copy = SlotCopy::whole(source, live_slot_);
  stream_.synchronize();
  const Clock::time_point begin = Clock::now();
  restorer_.copy_slots(stream_, {&copy, 1});
  stream_.synchronize();
  const double seconds = seconds_since(begin);
  counts_.copy_seconds += seconds;
  ++counts_.restores;
  if (copies_++ % copies_per_peer_sample == 0) shares_of_memcpy_.push_back(peer_.restore_seconds(stream_, 1) / seconds);
}

void DeviceStates::advance(Content from, Content to, std::span<const PlacedState> checkpoints) {
  // A checkpoint at the end of the forward is the live state itself; all others come from scratch.
  const bool at_end = !checkpoints.empty() && checkpoints.back().content == to;
  std::span<const PlacedState> inner = checkpoints.first(checkpoints.size() - at_end);
  const auto rows_max = static_cast<std::size_t>(scratch_.slots());
  do {
    const std::span<const PlacedState> chunk = inner.first(std::min(rows_max, inner.size()));
    inner = inner.subspan(chunk.size());
    rows_.clear();
    intermediates_.clear();
    for (const PlacedState& state : chunk) {
      const auto row = static_cast<std::int32_t>(rows_.size());
      rows_.push_back({.from = from, .to = state.content, .live_slot = live_slot_, .scratch_slot = row});
      intermediates_.push_back(SlotCopy::whole(row, state.slot.value()));
    }
    const Content reached = inner.empty() ? to : chunk.back().content;
    const Clock::time_point begin = Clock::now();
    model_.make_intermediates(stream_, rows_);
    model_.advance(stream_, live_slot_, from, reached);
    stream_.synchronize();
    counts_.forward_seconds += seconds_since(begin);
    const SlotCopy end =
        at_end && inner.empty() ? SlotCopy::whole(live_slot_, checkpoints.back().slot.value()) : SlotCopy{};
    commit(intermediates_, {&end, end.src_slot >= 0 ? 1U : 0U});
    from = reached;
  } while (!inner.empty());
}

void DeviceStates::commit(std::span<const SlotCopy> intermediates, std::span<const SlotCopy> ends) {
  const std::size_t states = intermediates.size() + ends.size();
  if (states == 0) return;
  const Clock::time_point begin = Clock::now();
  committer_.commit_scratch(stream_, intermediates, ends);
  stream_.synchronize();
  const double seconds = seconds_since(begin);
  counts_.copy_seconds += seconds;
  counts_.commits += static_cast<std::int64_t>(states);
  if (copies_++ % copies_per_peer_sample == 0 && states <= peer_images_)
    shares_of_memcpy_.push_back(peer_.commit_seconds(stream_, states) / seconds);
}

MoverCounts DeviceStates::counts() const {
  MoverCounts counts = counts_;
  counts.copy_share_of_memcpy = median(shares_of_memcpy_);
  return counts;
}

std::size_t DeviceStates::memory_bytes() const noexcept {
  const auto states = static_cast<std::size_t>(pool_.slots() + live_.slots() + scratch_.slots()) + peer_images_ + 1;
  return states * spec().slot_bytes();
}

}  // namespace stateport::replay
