// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../global_memory.hpp"
#include "launch_shape.hpp"
#include "tile_copy.hpp"
#include "tile_part.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Copies of aligned tiles (CopyTableView::aligned) by teams that take one tile each.
namespace stateport::kernels {

/// `converts`: whether a launch has tiles whose elements are converted.
template <bool converts>
inline constexpr LaunchShape aligned_shape_with = converts ? converting_shape : aligned_shape;
/// Parts of a tile, a team each.
template <bool converts>
inline constexpr std::uint32_t aligned_parts = converts ? converting_parts : 1;
/// Entries that a lane has in flight, of which so many bytes of a tile make one.
template <bool converts, std::uint32_t entry_bytes>
inline constexpr std::uint32_t aligned_in_flight = on_host ? 4
                                                           : tile_bytes / aligned_parts<converts> /
                                                                 (aligned_shape_with<converts>.lanes * entry_bytes);

template <bool converts>
KOKKOS_INLINE_FUNCTION void copy_aligned_words(std::uint32_t lane, std::byte* dst, const std::byte* src,
                                               std::uint32_t bytes) {
  constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word16));
  const auto* const from = reinterpret_cast<const Word16*>(src);
  auto* const to = reinterpret_cast<Word16*>(dst);
  move_in_groups<aligned_in_flight<converts, word_bytes>>(
      lane, aligned_shape_with<converts>.lanes, bytes / word_bytes, [&](std::uint64_t i) { return from[i]; },
      [&](std::uint64_t i, const Word16& word) { to[i] = word; });
}

/// Four elements: one access.
struct alignas(16) Fp32Quad {
  float element[4];
};
struct alignas(8) Bf16Quad {
  std::uint32_t pair[2];
};
KOKKOS_INLINE_FUNCTION Bf16Quad to_bf16(const Fp32Quad& in) {
  const auto pair = [](float low, float high) {
    return convert::fp32_to_bf16(low) | std::uint32_t{convert::fp32_to_bf16(high)} << 16;
  };
  return {{pair(in.element[0], in.element[1]), pair(in.element[2], in.element[3])}};
}
KOKKOS_INLINE_FUNCTION Fp32Quad to_fp32(const Bf16Quad& in) {
  const auto low = [](std::uint32_t pair) { return convert::bf16_to_fp32(static_cast<std::uint16_t>(pair)); };
  const auto high = [](std::uint32_t pair) { return convert::bf16_to_fp32(static_cast<std::uint16_t>(pair >> 16)); };
  return {{low(in.pair[0]), high(in.pair[0]), low(in.pair[1]), high(in.pair[1])}};
}

/// Converts quads. Tiles count elements that are converted as fp32.
template <class From, class To, class Convert>
KOKKOS_INLINE_FUNCTION void convert_aligned_quads(std::uint32_t lane, std::byte* dst, const std::byte* src,
                                                  std::uint32_t quads, const Convert& convert) {
  const auto* const from = reinterpret_cast<const From*>(src);
  auto* const to = reinterpret_cast<To*>(dst);
  move_in_groups<aligned_in_flight<true, sizeof(Fp32Quad)>>(
      lane, aligned_shape_with<true>.lanes, quads, [&](std::uint64_t i) { return from[i]; },
      [&](std::uint64_t i, const From& quad) { to[i] = convert(quad); });
}

/// Part `part` of what a tile holds of `row`, whole windows.
template <bool converts>
KOKKOS_INLINE_FUNCTION void copy_aligned_tile(const Team& team, const Tile& tile, std::uint32_t part,
                                              const SlotCopy& row) {
  auto [src, dst, src_slot, shift] = copy_of(tile, row);
  std::uint32_t elements = src_slot < 0 || src == dst ? 0 : tile.elements;
  constexpr std::uint32_t parts = aligned_parts<converts>;
  if constexpr (parts != 1) {
    const TilePart range = part_of(elements, parts, part);
    elements = range.elements;
    src += std::uint64_t{range.first} * element_bytes(tile.src_type);
    dst += std::uint64_t{range.first} * tile.element_bytes;
  }
  const std::uint32_t bytes = elements * tile.element_bytes;
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  if constexpr (converts)
    if (tile.mode == TensorRoute::Mode::convert) {
      if (tile.src_type == ElementType::fp32)
        return convert_aligned_quads<Fp32Quad, Bf16Quad>(lane, dst, src, bytes / sizeof(Bf16Quad), to_bf16);
      return convert_aligned_quads<Bf16Quad, Fp32Quad>(lane, dst, src, bytes / sizeof(Fp32Quad), to_fp32);
    }
  copy_aligned_words<converts>(lane, dst, src, bytes);
}

}  // namespace stateport::kernels
