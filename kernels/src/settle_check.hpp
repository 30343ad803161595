// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sum_launch.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// One check, settled by the lanes of a team. A CPU thread is lane 0 of 1.
namespace stateport::kernels {

/// The first fault of a check: a tensor that changed is its number, one that is not finite has this added. A tensor
/// that changed counts before all that did not.
inline constexpr std::uint32_t not_finite_fault = 1u << 28;
inline constexpr std::uint32_t no_fault = UINT32_MAX;

/// Compares or remembers this lane's share of the sums, and sets them to 0. Returns its first fault.
KOKKOS_INLINE_FUNCTION std::uint32_t settle_tensors(std::uint32_t lane, std::uint32_t lanes, const CheckEntry& entry,
                                                    const GroupSums& group, TensorSum* sums) {
  std::uint64_t* const remembered = group.sums + static_cast<std::uint64_t>(entry.slot) * group.tensors;
  std::uint32_t first = no_fault;
  for (std::uint32_t tensor = lane; tensor < group.tensors; tensor += lanes) {
    const TensorSum now = sums[tensor];
    sums[tensor] = {};
    std::uint32_t fault = now.not_finite != 0 ? not_finite_fault + tensor : no_fault;
    if (entry.published != 0)
      remembered[tensor] = now.sum;
    else if (remembered[tensor] != now.sum)
      fault = tensor;
    if (fault < first) first = fault;
  }
  return first;
}

/// The verdict on a check with this first fault of all lanes.
KOKKOS_INLINE_FUNCTION std::uint32_t verdict_of(const CheckEntry& entry, std::uint64_t remembered_content,
                                                std::uint32_t fault) {
  const auto packed = [](VerdictCode code, std::uint32_t tensors) {
    return static_cast<std::uint32_t>(code) | tensors << verdict_code_bits;
  };
  if (entry.published == 0 && entry.content != remembered_content) return packed(VerdictCode::other_state, 0);
  if (fault == no_fault) return packed(VerdictCode::passed, 0);
  if (fault < not_finite_fault) return packed(VerdictCode::changed, fault + 1);
  return packed(VerdictCode::not_finite, fault - not_finite_fault + 1);
}

/// To be called by one lane, after all others have settled their tensors.
KOKKOS_INLINE_FUNCTION void settle_slot(const CheckEntry& entry, const GroupSums& group, std::uint32_t fault,
                                        std::uint32_t* verdict) {
  std::uint64_t& content = group.contents[entry.slot];
  const std::uint32_t found = verdict_of(entry, content, fault);
  if (entry.published != 0) content = entry.content;
  // The host writes the entry again once it has seen the verdict.
  Kokkos::memory_fence();
  Kokkos::atomic_store(verdict, found);
}

}  // namespace stateport::kernels
