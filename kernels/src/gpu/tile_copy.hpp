// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>

#include "../copy_table.hpp"
#include "../global_memory.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// The part of a row that a tile holds.
namespace stateport::kernels {

/// Addresses are those of the tile, in modes bytes and convert.
struct TileCopy {
  const std::byte* src;
  std::byte* dst;
  std::int32_t src_slot;  ///< negative: the row does not copy this tile
  std::uint32_t shift;    ///< in tokens; 0 for recurrent tensors
};

/// No branch comes before the tile's record is read: all of it is under way at once.
KOKKOS_INLINE_FUNCTION TileCopy copy_of(const Tile& tile, const SlotCopy& row) {
  const bool conv = tile.kind == StateKind::conv;
  const std::int32_t src_slot = conv ? row.src_slot : row.recurrent_src_slot;
  return {.src = in_global_memory(tile.src_of(Kokkos::max(src_slot, 0))),
          .dst = in_global_memory(tile.dst_of(Kokkos::max(row.dst_slot, 0))),
          .src_slot = src_slot,
          .shift = static_cast<std::uint32_t>(conv ? row.conv_shift : 0)};
}

/// So many rows of a ds tensor are whole words of 16 bytes, whatever their length.
inline constexpr std::uint32_t row_group = 16;

/// The channel at which a range of a ds tensor's elements begins or ends, at the start of a group of rows. Ranges that
/// meet at `element` round it alike.
KOKKOS_INLINE_FUNCTION std::uint32_t channel_bound(const Tile& tile, std::uint32_t element) {
  if (element == tile.window * tile.dim) return tile.dim;
  return element / tile.window / row_group * row_group;
}

/// The channels of a ds tensor whose rows a tile shifts.
struct Channels {
  std::uint32_t begin;
  std::uint32_t end;
};
KOKKOS_INLINE_FUNCTION Channels channels_of(const Tile& tile) {
  const auto first = static_cast<std::uint32_t>(tile.first_element);
  return {.begin = channel_bound(tile, first), .end = channel_bound(tile, first + tile.elements)};
}

}  // namespace stateport::kernels
