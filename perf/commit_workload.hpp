// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "slot_workload.hpp"

#include <cstdint>
#include <vector>

namespace stateport::perf {

/// Every request of a batch takes one of the states that its drafts left in scratch memory, of a random step, to a live
/// slot of its own: all layers, a conv window out of a strip of tokens and a recurrent state out of an array of them.
class CommitWorkload {
 public:
  struct Size {
    std::int32_t requests = 1;
    std::int32_t layers = 1;
    std::int32_t steps = 2;
    std::int64_t window = 4;
    std::int64_t dim = 2048;  ///< 16 KiB of conv state a layer
    std::int64_t heads = 16;  ///< of 64 x 64 numbers: 256 KiB of recurrent state a layer
    std::int32_t idle = 0;    ///< requests, the first of all, that take nothing
  };
  explicit CommitWorkload(const Size& size);

  void run(const Stream& stream) { committer_.commit_step(stream, targets()); }
  [[nodiscard]] StepTargets targets() const;
  [[nodiscard]] const Size& size() const { return size_; }
  [[nodiscard]] const StateStore& live() const { return live_; }
  /// One for each tensor of the live store.
  [[nodiscard]] const std::vector<StepScratch>& scratch() const { return scratch_; }
  /// The copies: a chunk for each tensor of each request that takes a state.
  [[nodiscard]] std::vector<Chunk> chunks() const;
  /// Read and written.
  [[nodiscard]] double moved_bytes() const;

 private:
  [[nodiscard]] static std::vector<StepScratch> scratch_of(const StateStore& states, const Size& size);

  Size size_;
  DeviceResource resource_;
  StateStore states_;  ///< scratch memory: a slot holds the states of one request's drafts
  StateStore live_;
  std::vector<StepScratch> scratch_;
  StepCommitter committer_;
  std::vector<std::int32_t> step_, slot_;
  Buffer device_step_, device_slot_;
};

}  // namespace stateport::perf
