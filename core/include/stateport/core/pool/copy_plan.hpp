// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <span>

namespace stateport {

/// One state to copy. Plain data: kernels read it from host memory (staged) or from device memory (decided there).
///
///     conv tensors:      tokens [conv_shift, window) of src_slot → tokens [0, window - conv_shift) of dst_slot
///     recurrent tensors: the whole state of recurrent_src_slot   → dst_slot
///
/// A negative slot skips its part. conv_shift 0 copies the whole window.
struct SlotCopy {
  std::int32_t src_slot = -1;
  std::int32_t dst_slot = -1;
  std::int32_t conv_shift = 0;
  std::int32_t recurrent_src_slot = -1;

  /// The plain copy: the whole state of `src` → `dst`.
  [[nodiscard]] static constexpr SlotCopy whole(std::int32_t src, std::int32_t dst) noexcept {
    return {src, dst, 0, src};
  }
  [[nodiscard]] static constexpr SlotCopy whole(SlotId src, SlotId dst) noexcept {
    return whole(src.value(), dst.value());
  }
  friend constexpr bool operator==(const SlotCopy&, const SlotCopy&) noexcept = default;
};
static_assert(sizeof(SlotCopy) == 16, "kernels load one SlotCopy with one 16-byte access");

/// The copies of one launch, in any order. The stores are named where the plan is executed. Does not own its memory.
using CopyPlan = std::span<const SlotCopy>;

/// Refuses a host plan that no launch can execute: a slot >= its store's slot count, conv_shift < 0, two copies into
/// one slot, and, when `same_store`, a copy whose destination another copy reads (a chain), because the copies of a
/// launch run in no order. Throws InvalidArgument. O(n log n) in caller-independent scratch, thread-safe.
void validate(CopyPlan plan, std::int32_t src_slots, std::int32_t dst_slots, bool same_store);

}  // namespace stateport
