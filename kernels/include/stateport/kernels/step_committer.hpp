// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/element_type.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

class StateStore;

/// The places of one tensor's states after all draft steps. The state of request b after step t starts at
/// base + b * request_stride_bytes + t * step_stride_bytes. Elements of a recurrent state are contiguous; element
/// (token, channel) of a conv state lies token * token_stride + channel * channel_stride elements further.
///
/// States may overlap: a conv strip is a step stride of one token. [channel][time] strips of n tokens have
/// token_stride 1 and channel_stride n; [time][channel] strips have token_stride dim and channel_stride 1.
struct StepScratch {
  const std::byte* base = nullptr;
  std::int64_t request_stride_bytes = 0;
  std::int64_t step_stride_bytes = 0;
  std::int64_t token_stride = 0;    ///< elements; conv only
  std::int64_t channel_stride = 0;  ///< elements; conv only
  ElementType type = ElementType::fp32;

  /// The strip of a conv tensor in either order, `strip_tokens` = window + steps - 1.
  [[nodiscard]] static constexpr StepScratch strip(const std::byte* base, ElementType type, std::int64_t strip_tokens,
                                                   std::int64_t dim, bool channel_major) noexcept {
    const auto bytes = static_cast<std::int64_t>(element_bytes(type));
    const std::int64_t token = channel_major ? 1 : dim;
    return {base, strip_tokens * dim * bytes, token * bytes, token, channel_major ? strip_tokens : 1, type};
  }
};

/// Which steps a commit takes, [rows] in device memory, read when the kernel runs. A row is skipped for a target whose
/// step or slot is out of range. The two targets of a launch must not name one slot twice.
struct StepTargets {
  const std::int32_t* last_step = nullptr;
  const std::int32_t* live_slot = nullptr;
  const std::int32_t* track_step = nullptr;  ///< nullptr: nothing is tracked
  const std::int32_t* track_slot = nullptr;
  std::int32_t rows = 0;
};

/// Speculative commit with scratch states: moves the state after one chosen step of each request from scratch to its
/// live slot, and of another step to its checkpoint slot. One launch for all tensors, rows and both targets, on the
/// caller's stream, without fence or allocation. fp32, fp16 and bf16 are converted where scratch and store differ.
/// Calls must come from one thread at a time, and at most 8,192 may be under way; scratch and store must stay where they
/// are.
class StepCommitter {
 public:
  /// One scratch per tensor of the destination, in its order. Throws InvalidArgument: another number of them, null
  /// bases, types that cannot be converted or are in blocks, strides < 0 or not whole elements, requests or steps < 1,
  /// scratch and stores that kernels cannot reach (as SlotCopier).
  StepCommitter(std::span<const StepScratch> scratch, const StateStore& destination, std::int32_t requests,
                std::int32_t steps);
  StepCommitter(StepCommitter&&) noexcept;
  StepCommitter& operator=(StepCommitter&&) noexcept;
  ~StepCommitter();

  /// Throws InvalidArgument for rows < 0 or > requests and null arrays.
  void commit_step(const Stream& stream, const StepTargets& targets);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
