// SPDX-License-Identifier: Apache-2.0
#include "store_overlap.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::kernels {
namespace {

/// From one base to another. Bases are numbers that may lie in different halves of the address range.
std::int64_t distance_bytes(const StateTensorView& from, const StateTensorView& to) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to.base) -
                                   reinterpret_cast<std::uintptr_t>(from.base));
}

std::int64_t range_bytes(const StateTensorView& tensor, std::int32_t slots) {
  return (slots - 1) * tensor.slot_stride_bytes + static_cast<std::int64_t>(tensor.spec.extent_bytes());
}

/// Whether a slot of `a` and a slot of `b` have a byte in common. Exact for equal strides, where tensors may lie in
/// each other's padding; ranges from the first to the last slot decide for others.
bool meet(const StateTensorView& a, std::int32_t a_slots, const StateTensorView& b, std::int32_t b_slots) {
  const std::int64_t distance = distance_bytes(a, b);
  const std::int64_t stride = a.slot_stride_bytes;
  if (stride != b.slot_stride_bytes) return distance < range_bytes(a, a_slots) && -distance < range_bytes(b, b_slots);
  // Slot i of a meets slot j of b iff (i - j) * stride lies strictly between these two.
  const std::int64_t above = distance - static_cast<std::int64_t>(a.spec.extent_bytes());
  const std::int64_t below = distance + static_cast<std::int64_t>(b.spec.extent_bytes());
  const std::int64_t first = std::max<std::int64_t>(floor_div(above, stride) + 1, 1 - b_slots);
  const std::int64_t last = std::min<std::int64_t>(ceil_div(below, stride) - 1, a_slots - 1);
  return first <= last;
}

bool any_meet(const StateStore& a, const StateStore& b) {
  return std::ranges::any_of(a.tensors(), [&](const StateTensorView& tensor) {
    return std::ranges::any_of(b.tensors(),
                               [&](const StateTensorView& other) { return meet(tensor, a.slots(), other, b.slots()); });
  });
}

/// The n of shared_slots() for one pair of tensors, if there is one.
std::optional<std::int64_t> slot_offset(const StateTensorView& source, const StateTensorView& destination) {
  const std::int64_t stride = destination.slot_stride_bytes;
  const std::int64_t distance = distance_bytes(destination, source);
  const bool alike = source.slot_stride_bytes == stride && source.spec.type == destination.spec.type &&
                     source.spec.strides == destination.spec.strides;
  if (!alike || distance % stride != 0) return {};
  return distance / stride;
}

}  // namespace

std::optional<std::int64_t> shared_slots(const StateStore& source, const StateStore& destination) {
  const auto offset = slot_offset(source.tensors().front(), destination.tensors().front());
  const bool same_slots = offset && std::ranges::equal(source.tensors(), destination.tensors(),
                                                       [&](const StateTensorView& a, const StateTensorView& b) {
                                                         return slot_offset(a, b) == offset;
                                                       });
  if (same_slots && *offset == 0) return offset;
  if (!any_meet(source, destination)) return {};
  require(same_slots, "source", "shares memory with the destination", "slots of both must be the same, or lie apart");
  return offset;
}

}  // namespace stateport::kernels
