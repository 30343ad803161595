// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::engine {

/// Speculation with scratch states: a pass keeps the live states and leaves the state after each of its steps here;
/// then one launch brings the state after the last accepted step into each live slot, and that at a checkpoint's
/// position into the checkpoint's slot.
class DraftSteps {
 public:
  struct Commit {
    std::int32_t row = 0;
    std::int32_t live_step = -1;  ///< negative: none
    SlotId live_slot;
    std::int32_t kept_step = -1;  ///< negative: none
    SlotId kept_slot;
  };

  /// For passes of `rows` rows and at most `steps` tokens a row, into slots of `store`. `trees`: the tokens of a row
  /// are a tree, so that conv windows do not overlap.
  DraftSteps(const StateStore& store, std::int32_t rows, std::int32_t steps, bool trees, const Stream& stream);

  /// The state after token `step` (0 = the first) of a row of this pass.
  void put(std::int32_t row, std::int64_t step, const ModelState& state);
  void commit(std::span<const Commit> commits);

 private:
  struct Tensor {
    StateTensorSpec spec;
    std::int64_t step_elements = 0;  ///< from one step to the next
    std::int64_t row_elements = 0;
    /// [row, steps, shape]; conv windows that overlap: strips [row, window + steps - 1, dim]
    std::vector<std::byte> host;
    Buffer device;
  };
  [[nodiscard]] StepCommitter make_committer(const StateStore& store, std::int32_t rows);

  Stream stream_;
  std::int32_t steps_;
  bool trees_;
  DeviceResource memory_;
  std::vector<Tensor> tensors_;
  Buffer targets_;  ///< [4, rows] int32
  StepCommitter committer_;
};

}  // namespace stateport::engine
