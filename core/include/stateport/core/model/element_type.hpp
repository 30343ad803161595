// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stateport {

/// Element type of a state tensor. Copies convert between fp32, fp16 and bf16, and between these and int8_block32; the
/// others are moved bit for bit. int8 are plain numbers.
///
/// int8_block32 is the type of recurrent tensors of checkpoints: int8 values, and one fp16 scale for each block of up
/// to 32 of them (see BlockLayout). It takes about a quarter of the bytes of fp32. Live states are never of this type:
/// rounding after every step adds up, rounding once at a checkpoint does not.
enum class ElementType : std::uint8_t { fp32, fp16, bf16, fp64, fp8, int8, int8_block32 };

/// The last one, for those who number or list them.
inline constexpr ElementType element_type_last = ElementType::int8_block32;

/// Bytes of one element; of int8_block32, of its value alone: StateTensorSpec::natural_bytes() adds the scales.
[[nodiscard]] constexpr std::size_t element_bytes(ElementType type) noexcept {
  switch (type) {
    case ElementType::fp64:
      return 8;
    case ElementType::fp32:
      return 4;
    case ElementType::fp16:
    case ElementType::bf16:
      return 2;
    case ElementType::fp8:
    case ElementType::int8:
    case ElementType::int8_block32:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr std::string_view name(ElementType type) noexcept {
  switch (type) {
    case ElementType::fp64:
      return "fp64";
    case ElementType::fp32:
      return "fp32";
    case ElementType::fp16:
      return "fp16";
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp8:
      return "fp8";
    case ElementType::int8:
      return "int8";
    case ElementType::int8_block32:
      return "int8_block32";
  }
  return "?";
}

/// True for the types whose elements stand alone and that dtype conversion reads and writes.
[[nodiscard]] constexpr bool convertible(ElementType type) noexcept {
  return type == ElementType::fp32 || type == ElementType::fp16 || type == ElementType::bf16;
}

/// True for the types whose elements share a scale with others of their block.
[[nodiscard]] constexpr bool in_blocks(ElementType type) noexcept {
  return type == ElementType::int8_block32;
}

/// True if copies can turn elements of type `from` into elements of type `to`.
[[nodiscard]] constexpr bool convertible(ElementType from, ElementType to) noexcept {
  return from == to || ((convertible(from) || in_blocks(from)) && (convertible(to) || in_blocks(to)));
}

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
