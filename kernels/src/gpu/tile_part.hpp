// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../copy_table.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Tiles whose parts several teams take.
namespace stateport::kernels {

/// Elements of a tile, counted from its first one.
struct TilePart {
  std::uint32_t first;
  std::uint32_t elements;
};

/// Part `part` of `parts` of so many elements. Parts begin at multiples of 16 elements; the last ones may be empty.
KOKKOS_INLINE_FUNCTION TilePart part_of(std::uint32_t elements, std::uint32_t parts, std::uint32_t part) {
  constexpr std::uint32_t grain = 16;
  const std::uint32_t each = (elements / parts + grain - 1) / grain * grain;
  const std::uint32_t first = part * each < elements ? part * each : elements;
  const std::uint32_t left = elements - first;
  return {.first = first, .elements = part + 1 == parts || left < each ? left : each};
}

/// The same of a tile in mode bytes, or in any other if nothing reads the addresses of the part.
KOKKOS_INLINE_FUNCTION Tile part_of(Tile tile, std::uint32_t parts, std::uint32_t part) {
  const TilePart range = part_of(tile.elements, parts, part);
  tile.first_element += range.first;
  tile.elements = range.elements;
  tile.src += std::uint64_t{range.first} * tile.element_bytes;
  tile.dst += std::uint64_t{range.first} * tile.element_bytes;
  return tile;
}

}  // namespace stateport::kernels
