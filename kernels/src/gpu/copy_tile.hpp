// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../enqueue.hpp"
#include "../shifted_copy.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

/// One tile of one row, moved by one team; and the grid that every launch uses.
namespace stateport::kernels {

/// Threads of a team. On a host, where these kernels run for tests, as few as can hand work to each other.
inline constexpr bool on_host = std::is_same_v<ExecutionSpace, Kokkos::DefaultHostExecutionSpace>;
inline constexpr std::uint32_t team_lanes = on_host ? 2 : 256;
/// Bounds the registers of a thread, so that loads of many teams are in flight: 64 for CUDA (4 teams share the 65,536
/// of a multiprocessor), 96 for HIP (5 waves share the 512 of a SIMD; fewer would spill).
#if defined(KOKKOS_ENABLE_HIP)
inline constexpr int launch_bound_min = 5;
#else
inline constexpr int launch_bound_min = 4;
#endif
/// Rows that one pass of a device-decided launch looks at; their indices lie in shared memory.
inline constexpr std::uint32_t rows_per_pass = 1024;

using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<team_lanes, launch_bound_min>, ArgumentsByValue>;
using Team = Policy::member_type;

/// `elementwise`: the table may have tensors in another mode than bytes. Kernels without that code need fewer
/// registers.
template <bool elementwise>
KOKKOS_INLINE_FUNCTION void copy_tile(const Team& team, const CopyTableView& table, std::uint32_t source,
                                      const SlotCopy& row, std::uint32_t tile_index) {
  const Tile tile = table.tiles[tile_index];
  const TensorRoute& route = table.routes[source * table.tensor_count + tile.tensor];
  const bool conv = route.kind == StateKind::conv;
  const std::int32_t src_slot = conv ? row.src_slot : row.recurrent_src_slot;
  if (src_slot < 0) return;
  const std::byte* const src = route.src_of(src_slot);
  std::byte* const dst = route.dst_of(row.dst_slot);
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  constexpr std::uint32_t lanes = team_lanes;  // known, so that neighbouring accesses share one address register
  if (conv && row.conv_shift != 0)
    return copy_shifted_conv<elementwise, Word16>(lane, lanes, route, dst, src, row.conv_shift, tile.first_element,
                                                  tile.elements,
                                                  [&](std::byte* to, const std::byte* from, std::uint32_t bytes) {
                                                    copy_bytes_by_lanes(lane, lanes, to, from, bytes);
                                                  });
  if (src == dst) return;
  if constexpr (elementwise)
    if (route.mode != TensorRoute::Mode::bytes)
      return copy_elements(lane, lanes, route, dst, src, tile.first_element, tile.elements);
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  copy_bytes_by_lanes(lane, lanes, dst + tile.first_element * element, src + tile.first_element * element,
                      tile.elements * static_cast<std::uint32_t>(element));
}

/// As many teams as the device runs at once, but not more than there are tiles.
inline Policy policy_for(const ExecutionSpace& space, std::uint64_t items) {
  // The launch bound is the number of teams that a unit of a GPU has registers for: those of a unit of CUDA share them,
  // and the four waves of a team of HIP lie one in each of a unit's four SIMDs.
  static const auto resident =
      static_cast<std::uint64_t>(on_host ? std::max(1, space.concurrency() / static_cast<int>(team_lanes))
                                         : detail::compute_units() * launch_bound_min);
  return {space, static_cast<int>(std::min(resident, std::max<std::uint64_t>(items, 1))), team_lanes};
}

}  // namespace stateport::kernels
