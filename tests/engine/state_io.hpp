// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/kernels/state_store.hpp>

#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::engine {

/// Carries states between a store, which may lie in a device's memory, and the layer maths on the host. A store may
/// hold some of the layers; the others stay as they are. Every call waits for the stream.
class StateIo {
 public:
  StateIo(const StateStore& store, const Stream& stream) : store_(&store), stream_(stream) {}

  /// Conv inputs [bias, bias + 3) of one slot, the recurrent state of another.
  void read(SlotId conv_slot, std::int64_t bias, SlotId recurrent_slot, ModelState& state);
  /// Conv inputs [0, 3) and the recurrent state.
  void write(SlotId slot, const ModelState& state) { write_step(slot, slot, 0, state); }
  /// The state `step` tokens after one that write() left in conv_slot: conv inputs [step, step + 3) and a recurrent
  /// state in a slot of its own.
  void write_step(SlotId conv_slot, SlotId recurrent_slot, std::int64_t step, const ModelState& state);
  /// Fills the whole store, with NaN or large numbers: a read of an entry that was never written is noticed.
  void poison(std::byte byte) const;

 private:
  void load(const StateTensorView& tensor, SlotId slot);
  void save(const StateTensorView& tensor, SlotId slot);

  const StateStore* store_;
  Stream stream_;
  std::vector<std::byte> bytes_;  ///< one tensor of one slot
  std::vector<float> staging_;    ///< its numbers
};

}  // namespace stateport::engine
