// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "cache.hpp"
#include "draft_steps.hpp"
#include "state_io.hpp"

namespace stateport::engine {

/// The store of an engine that runs each sequence in a live slot of its own; checkpoints lie in other slots of it.
class LiveSlots {
 public:
  LiveSlots(const CacheOptions& options, std::int32_t slots);

  [[nodiscard]] const StateStore& store() const noexcept { return store_; }
  [[nodiscard]] const Stream& stream() const noexcept { return stream_; }

  void read(SlotId live, ModelState& state) { io_.read(live, 0, live, state); }
  void write(SlotId slot, const ModelState& state) { io_.write(slot, state); }
  /// Writes the live state at the end of a pass without drafts; states of a pass with drafts wait for commit().
  void wrote_state(const Row& row, std::int64_t done, SlotId live, const ModelState& state);
  /// After sampling, for a row with drafts: its live state, and the one after `kept_tokens` tokens as a checkpoint.
  void accept(const Row& row, SlotId live, std::int64_t kept_tokens = -1, SlotId kept = {});
  /// Executes what was accepted, in one launch.
  void commit();
  /// Copies states within the store, in one launch; returns their number.
  std::int64_t copy(CopyPlan plan);
  /// Zeroes slots, in one launch.
  void clear(std::span<const SlotId> slots) { copier_.clear_slots(stream_, slots); }

 private:
  Stream stream_ = Stream::default_stream();
  DeviceResource memory_;
  StateStore store_;
  SlotCopier copier_;
  StateIo io_;
  std::optional<DraftSteps> steps_;
  std::vector<DraftSteps::Commit> commits_;
};

/// All recurrent layers of the model, with the conv window of an engine that keeps draft states elsewhere.
[[nodiscard]] StateSpec live_state_spec(const CacheOptions& options);

}  // namespace stateport::engine
