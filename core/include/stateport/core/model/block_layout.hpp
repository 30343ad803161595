// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace stateport {

/// How a slot of a tensor of type int8_block32 lies in memory: the values of all elements, then the scales of all
/// blocks, without gaps.
///
///     byte 0                            elements()                       bytes()
///     | value 0 | value 1 | value 2 | … | scale 0     | scale 1     | … |
///       int8      int8      int8          fp16          fp16
///
/// A row is a run of elements along the last extent of the tensor. Each row is cut into blocks of 32 elements from its
/// start on; where 32 does not divide the row, its last block is shorter. A block never reaches into the next row.
/// Elements and blocks are numbered in the order of the rows:
///
///     row 0                                         row 1
///     | block 0: 32 | block 1: 32 | block 2: 1…32 | | block 3: 32 | block 4: 32 | block 5: 1…32 | …
///
/// Element = value * scale of its block. Both parts start at a multiple of 16 bytes if the slot does and 16 divides the
/// number of elements, as it does in every model of the catalogue; a scale may otherwise lie at an odd address.
struct BlockLayout {
  static constexpr std::int64_t block_elements = 32;
  static constexpr std::int64_t scale_bytes = 2;

  std::int64_t rows = 1;
  std::int64_t row_elements = 1;

  [[nodiscard]] constexpr std::int64_t elements() const noexcept { return rows * row_elements; }
  [[nodiscard]] constexpr std::int64_t blocks_per_row() const noexcept {
    return (row_elements + block_elements - 1) / block_elements;
  }
  [[nodiscard]] constexpr std::int64_t blocks() const noexcept { return rows * blocks_per_row(); }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(elements() + blocks() * scale_bytes);
  }
  friend constexpr bool operator==(const BlockLayout&, const BlockLayout&) noexcept = default;
};

}  // namespace stateport
