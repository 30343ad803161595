// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include "../block_copy.hpp"
#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../enqueue.hpp"
#include "../global_memory.hpp"
#include "../shifted_copy.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// One tile of one row, moved by one team; and the grid that every launch uses.
namespace stateport::kernels {

/// Threads of a team. On a host, where these kernels run for tests, as few as can hand work to each other.
inline constexpr bool on_host = std::is_same_v<ExecutionSpace, Kokkos::DefaultHostExecutionSpace>;
inline constexpr std::uint32_t team_lanes = on_host ? 2 : 256;
/// Bounds the registers of a thread, so that loads of many teams are in flight: 64 for CUDA (4 teams share the 65,536
/// of a multiprocessor), 96 for HIP (5 waves share the 512 of a SIMD; fewer would spill). A kernel that decides rows,
/// too, has 80 with CUDA, where 64 would spill; one that encodes blocks has 80 with CUDA and 128 with HIP.
#if defined(KOKKOS_ENABLE_HIP)
inline constexpr unsigned launch_bound_min = 5;
inline constexpr unsigned deciding_launch_bound_min = 5;
inline constexpr unsigned encoding_launch_bound_min = 4;
#else
inline constexpr unsigned launch_bound_min = 4;
inline constexpr unsigned deciding_launch_bound_min = 3;
inline constexpr unsigned encoding_launch_bound_min = 3;
#endif
template <CopyCode code>
inline constexpr unsigned copy_launch_bound_min =
    code == CopyCode::blocks ? encoding_launch_bound_min : launch_bound_min;
/// Parts into which tiles are cut for the last round of a launch.
inline constexpr std::uint32_t tile_parts = 16;
/// Above this, the parts of a last round are no longer counted in 32 bits.
inline constexpr std::uint64_t teams_max = 8192;

template <unsigned bound_min>
using PolicyOf = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<team_lanes, bound_min>, ArgumentsByValue>;
using Policy = PolicyOf<launch_bound_min>;
using Team = Policy::member_type;

/// Where part `part` of a tile begins, in elements from the tile's start; parts begin as aligned as tiles.
KOKKOS_INLINE_FUNCTION std::uint32_t part_begin(const Tile& tile, std::uint32_t part) {
  constexpr std::uint32_t grain = 16;
  return part == tile_parts ? tile.elements : tile.elements * part / tile_parts / grain * grain;
}

/// Parts [first_part, end_part) of a tile.
KOKKOS_INLINE_FUNCTION Tile parts_of(const Tile& tile, std::uint32_t first_part, std::uint32_t end_part) {
  const std::uint32_t first = part_begin(tile, first_part);
  return {.tensor = tile.tensor,
          .elements = part_begin(tile, end_part) - first,
          .first_element = tile.first_element + first};
}

/// The elements of `tile` from one slot to another. `code`: the code that the route may need. Kernels without that code
/// need fewer registers.
template <CopyCode code>
KOKKOS_INLINE_FUNCTION void copy_elements_of(const Team& team, const TensorRoute& route, std::byte* dst,
                                             const std::byte* src, const Tile& tile) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  std::uint64_t first = tile.first_element;
  std::uint32_t count = tile.elements;
  bool bytes = route.mode == TensorRoute::Mode::bytes;
  if constexpr (code == CopyCode::blocks)
    if (route.mode == TensorRoute::Mode::blocks) {
      const auto block = static_cast<std::uint32_t>(first);
      if (copy_blocks(lane, team_lanes, route, dst, src, block, count)) return;
      const BlockElements elements = elements_of(route, block, count);
      first = elements.first;
      count = elements.count;
      bytes = route.src_type == route.dst_type;
    }
  if constexpr (code != CopyCode::bytes)
    if (!bytes) return copy_elements(lane, team_lanes, route, dst, src, first, count);
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  copy_bytes_by_lanes(lane, team_lanes, dst + first * element, src + first * element,
                      count * static_cast<std::uint32_t>(element));
}

/// `tile` of the copy `row`, read from source `source`.
template <CopyCode code>
KOKKOS_INLINE_FUNCTION void copy_tile(const Team& team, const CopyTableView& table, std::uint32_t source,
                                      const SlotCopy& row, const Tile& tile) {
  const TensorRoute& route = table.routes[source * table.tensor_count + tile.tensor];
  const bool conv = route.kind == StateKind::conv;
  const std::int32_t src_slot = conv ? row.src_slot : row.recurrent_src_slot;
  if (src_slot < 0) return;
  const std::byte* const src = in_global_memory(route.src_of(src_slot));
  std::byte* const dst = in_global_memory(route.dst_of(row.dst_slot));
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  constexpr std::uint32_t lanes = team_lanes;  // known, so that neighbouring accesses share one address register
  if (conv && row.conv_shift != 0)
    return copy_shifted_conv<code != CopyCode::bytes, Word16>(
        lane, lanes, route, dst, src, row.conv_shift, tile.first_element, tile.elements,
        [&](std::byte* to, const std::byte* from, std::uint32_t bytes) {
          copy_bytes_by_lanes(lane, lanes, to, from, bytes);
        },
        [&] { team.team_barrier(); });
  if (src != dst) copy_elements_of<code>(team, route, dst, src, tile);
}

/// As many teams as the device runs at once, but not more than there are parts of tiles.
template <unsigned bound_min = launch_bound_min>
PolicyOf<bound_min> policy_for(const ExecutionSpace& space, std::uint64_t items) {
  // The launch bound is the number of teams that a unit of a GPU has registers for: those of a unit of CUDA share them,
  // and the four waves of a team of HIP lie one in each of a unit's four SIMDs.
  static const auto resident =
      static_cast<std::uint64_t>(on_host ? std::max(1, space.concurrency() / static_cast<int>(team_lanes))
                                         : detail::compute_units() * static_cast<int>(bound_min));
  const std::uint64_t teams = std::min(std::min(resident, teams_max), std::max<std::uint64_t>(items, 1) * tile_parts);
  return {space, static_cast<int>(teams), team_lanes};
}

}  // namespace stateport::kernels
