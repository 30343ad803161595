// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>

#include "../block_copy.hpp"
#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../global_memory.hpp"
#include "../shifted_copy.hpp"
#include "launch_shape.hpp"
#include "shift_rows.hpp"
#include "tile_copy.hpp"
#include "word_tile.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// One tile of one row, moved by one team.
namespace stateport::kernels {

/// Asks for the shared memory in which ds rows are shifted, if a table has any, and `more` bytes beside it.
template <class Policy>
void add_team_memory(Policy& policy, bool has_ds, std::size_t more = 0) {
  constexpr std::size_t alignment = 16;
  const std::size_t stage = has_ds ? stage_bytes + alignment : 0;
  if (stage + more > 0) policy.set_scratch_size(0, Kokkos::PerTeam(stage + more));
}

/// The memory that add_team_memory asked for. nullptr without ds rows.
KOKKOS_INLINE_FUNCTION std::byte* stage_of(const Team& team, bool has_ds) {
  if (!has_ds) return nullptr;
  constexpr int alignment = 16;
  return static_cast<std::byte*>(team.team_shmem().get_shmem_aligned(static_cast<int>(stage_bytes), alignment));
}

/// The elements of `tile` from one slot to another. `code`: the code that the route may need. Kernels without that code
/// need fewer registers.
template <CopyCode code, std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void copy_elements_of(std::uint32_t lane, const TensorRoute& route, std::byte* dst,
                                             const std::byte* src, const Tile& tile) {
  std::uint64_t first = tile.first_element;
  std::uint32_t count = tile.elements;
  bool bytes = route.mode == TensorRoute::Mode::bytes;
  if constexpr (code == CopyCode::blocks)
    if (route.mode == TensorRoute::Mode::blocks) {
      const auto block = static_cast<std::uint32_t>(first);
      if (copy_blocks(lane, lanes, route, dst, src, block, count)) return;
      const BlockElements elements = elements_of(route, block, count);
      first = elements.first;
      count = elements.count;
      bytes = route.src_type == route.dst_type;
    }
  if (!bytes) return copy_elements(lane, lanes, route, dst, src, first, count);
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  copy_bytes_by_lanes(lane, lanes, dst + first * element, src + first * element,
                      count * static_cast<std::uint32_t>(element));
}

/// The rows of a tile of a ds tensor, shifted. `src`, `dst`: starts of the two slots.
template <std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void shift_ds(const Team& team, std::byte* stage, const Tile& tile, std::byte* dst,
                                     const std::byte* src, std::uint32_t shift) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  const Channels channels = channels_of(tile);
  const std::uint64_t offset = std::uint64_t{channels.begin} * tile.window * tile.element_bytes;
  const ShiftedRows rows{.dst = dst + offset,
                         .src = src + offset,
                         .rows = channels.end - channels.begin,
                         .window = tile.window,
                         .shift = shift,
                         .element_bytes = tile.element_bytes};
  shift_rows(lane, lanes, rows, in_team_memory(stage), stage_bytes, [&] { team.team_barrier(); });
}

/// The part of `row` that a tile holds, in any mode.
template <CopyCode code, std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void copy_any_tile(const Team& team, std::byte* stage, const TensorRoute& route,
                                          const Tile& tile, const SlotCopy& row) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  auto [src, dst, src_slot, shift] = copy_of(tile, row);
  std::uint32_t bytes = src_slot < 0 ? 0 : tile.bytes();
  if (shift != 0 || tile.mode != TensorRoute::Mode::bytes) {
    if (bytes == 0 || (shift != 0 && shift >= tile.window)) return;
    const auto first = static_cast<std::uint32_t>(tile.first_element);
    if (tile.mode != TensorRoute::Mode::bytes) {
      const std::byte* const from = in_global_memory(route.src_of(src_slot));
      std::byte* const to = in_global_memory(route.dst_of(row.dst_slot));
      if (shift != 0)
        shift_elements(lane, lanes, route, to, from, shift, first / tile.window, (first + tile.elements) / tile.window);
      else if (from != to)
        copy_elements_of<code, lanes>(lane, route, to, from, tile);
      return;
    }
    const std::uint64_t first_bytes = std::uint64_t{first} * tile.element_bytes;
    if (tile.token_inner) return shift_ds<lanes>(team, stage, tile, dst - first_bytes, src - first_bytes, shift);
    const ConvExtents extents{.window = tile.window, .dim = tile.dim, .element_bytes = tile.element_bytes};
    if (src == dst)
      return shift_sd_in_place<Word16>(lane, lanes, extents, dst - first_bytes, shift, first / tile.window,
                                       (first + tile.elements) / tile.window);
    bytes = shifted_sd_elements(extents, shift, first, tile.elements) * tile.element_bytes;
    src += std::uint64_t{shift} * tile.dim * tile.element_bytes;
  }
  if (src != dst) copy_bytes_by_lanes(lane, lanes, dst, src, bytes);
}

/// The part of `row` that a tile holds. `route`: that of the tile's tensor. `stage`: stage_of() the table.
template <CopyCode code, std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void copy_tile(const Team& team, std::byte* stage, const TensorRoute& route, const Tile& tile,
                                      const SlotCopy& row) {
  if constexpr (code == CopyCode::words)
    copy_word_tile<lanes>(team, stage, tile, row);
  else
    copy_any_tile<code, lanes>(team, stage, route, tile, row);
}

}  // namespace stateport::kernels
