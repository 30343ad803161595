// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/element_type.hpp>

#include <cstdint>

/// The sums by which StateIntegrity finds bytes that changed. The sum of one tensor of a slot is, modulo 2^64,
///
///     sum over i of  word(i) * sum_weight(i)
///
/// Without gaps, word i is bytes [4 i, 4 i + 4) of the slot, little-endian; bytes behind the last one count as 0. A
/// conv state with gaps has one word for each element, in the order of its memory, and two for one of eight bytes. The
/// order of the additions is free. Weights are odd 32-bit numbers, and differ for any two words less than 8 GiB apart.
/// So every change of one word changes the sum, and so does the exchange of two different words: neither factor of the
/// difference is 0, and each is below 2^32 in magnitude.
namespace stateport::kernels {

inline constexpr std::uint32_t sum_weight_step = 2 * 0x1E3779B1u;  // twice an odd number
inline constexpr std::uint32_t sum_weight_first = 0x85EBCA6Bu;     // odd

[[nodiscard]] constexpr std::uint32_t sum_weight(std::uint32_t word) noexcept {
  return sum_weight_step * word + sum_weight_first;
}

/// Which bits of a word are exponents, and the unit of each. An exponent of ones, which an infinity or a NaN has,
/// overflows into the bit above when a unit is added. Both are 0 for types that are not looked at.
struct ExponentMask {
  std::uint32_t bits = 0;
  std::uint32_t units = 0;
};

/// The exponents in a word of elements of this type.
[[nodiscard]] constexpr ExponentMask exponent_mask(ElementType type) noexcept {
  switch (type) {
    case ElementType::fp32:
      return {.bits = 0x7F800000u, .units = 0x00800000u};
    case ElementType::fp16:
      return {.bits = 0x7C007C00u, .units = 0x04000400u};
    case ElementType::bf16:
      return {.bits = 0x7F807F80u, .units = 0x00800080u};
    default:
      return {};
  }
}

/// The sum of some words.
struct PartSum {
  std::uint64_t sum = 0;
  std::uint32_t exponents = 0;  ///< the masked words with a unit added, ored

  constexpr void add(std::uint32_t word, std::uint32_t index, ExponentMask mask) noexcept {
    sum += std::uint64_t{word} * sum_weight(index);
    exponents |= (word & mask.bits) + mask.units;
  }
  constexpr void add(const PartSum& other) noexcept {
    sum += other.sum;
    exponents |= other.exponents;
  }
  [[nodiscard]] constexpr bool not_finite() const noexcept { return (exponents & 0x80008000u) != 0; }
};

/// The sum of one tensor of a check, to which kernels add.
struct TensorSum {
  std::uint64_t sum = 0;
  std::uint32_t not_finite = 0;  ///< 1: an infinity or a NaN was found
  std::uint32_t unused = 0;
};

/// The sums of all checks, in device memory. They are 0 until a kernel adds to them, and again when they are settled.
struct CheckSums {
  TensorSum* sums = nullptr;  ///< [checks, tensors_max]
  std::uint32_t tensors_max = 0;

  [[nodiscard]] constexpr TensorSum* of(std::int32_t check) const noexcept {
    return sums + static_cast<std::uint64_t>(check) * tensors_max;
  }
};

}  // namespace stateport::kernels
