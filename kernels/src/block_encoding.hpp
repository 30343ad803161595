// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "element_convert.hpp"

#include <bit>
#include <cstdint>

/// The encoding of one block of int8_block32 as functions of bits: kernels, their serial reference and everyone else
/// use these. Host and device agree to the last bit: maxima are of integers, quotients are rounded once and correctly,
/// and no product is added to anything, so that nothing can be fused.
///
///     scale   = max|x| / 127, rounded up to fp16
///     value   = x / scale, rounded to the nearest integer, ties to even, at most 127 in magnitude
///     decoded = value * scale, exact in fp32
///
/// Error: |x - decoded| <= scale / 2. From max|x| = 127 * 2^-14 on, scale < max|x| / 127 * (1 + 2^-9): the error is at
/// most 1 / 253 of the largest element of the block. Below, scale < 2 * max|x| / 127 + 2^-24. The quotient's own
/// rounding does not decide: half an integer times a scale has at most 19 significant bits, so that an x beside it is
/// at least one place of 24 bits away, and its quotient keeps to its side. As the scale is rounded up, no value is
/// clamped. Encoding a decoded block gives the same bytes: the largest value is 127, so that max|x| / 127 is the scale
/// again. Among the few fp16 numbers below 256 * 2^-24 it could be less than 127 and give a smaller scale; scales are
/// powers of two there, and the largest value is then at least 64.
///
/// Extremes. max|x| <= 2^-25: the block decodes to zeros (its error is below 2^-25). The sign of a zero is lost.
/// max|x| > 127 * 65504, about 8.3 million: the scale is 65504, and larger elements decode to 127 * 65504. An infinity
/// or a NaN: the scale is NaN, and the whole block decodes to NaN, so that a broken state stays one.
namespace stateport::convert {

inline constexpr std::uint16_t block_scale_max = 0x7BFF;  // 65504
inline constexpr std::uint16_t block_scale_nan = 0x7E00;
inline constexpr float block_value_max = 127.0f;

/// The bits of |value|. Those of larger magnitudes are larger numbers; infinities and NaN are the largest.
[[nodiscard]] constexpr std::int32_t magnitude_bits(float value) noexcept {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu);
}

/// The fp16 scale of a block, from the largest magnitude_bits of its elements.
[[nodiscard]] constexpr std::uint16_t block_scale(std::int32_t magnitude_bits_max) noexcept {
  if (magnitude_bits_max >= 0x7F800000) return block_scale_nan;
  const float magnitude = std::bit_cast<float>(magnitude_bits_max);
  if (magnitude <= 0x1p-25f) return 0;
  const float scale = magnitude / block_value_max;
  if (scale >= 0x1p-14f) {  // a normal number of fp16
    constexpr std::uint32_t exponent_difference = (127u - 15u) << 10;
    const std::uint32_t rounded_up = ((std::bit_cast<std::uint32_t>(scale) + 0x1FFFu) >> 13) - exponent_difference;
    return rounded_up < block_scale_max ? static_cast<std::uint16_t>(rounded_up) : block_scale_max;
  }
  const float units = scale * 0x1p24f;  // exact
  auto rounded_up = static_cast<std::uint32_t>(units);
  if (static_cast<float>(rounded_up) < units) ++rounded_up;
  constexpr std::uint32_t powers_below = 256;
  if (rounded_up >= powers_below) return static_cast<std::uint16_t>(rounded_up);
  std::uint32_t below = rounded_up - 1;
  below |= below >> 1;
  below |= below >> 2;
  below |= below >> 4;
  return static_cast<std::uint16_t>(below + 1);
}

/// Whether elements are divided by this scale; they are all 0 in a block with another.
[[nodiscard]] constexpr bool divides(std::uint16_t scale) noexcept {
  return scale != 0 && scale != block_scale_nan;
}

/// The value of an element, as the low byte. `scale`: of a scale that divides. Magnitudes are compared as numbers of
/// bits: a compiler may not turn comparisons of floats, which can trap, into instructions for whole vectors.
[[nodiscard]] constexpr std::uint32_t block_value(float element, float scale) noexcept {
  const auto largest = std::bit_cast<std::int32_t>(block_value_max * scale);  // exact
  std::int32_t magnitude = magnitude_bits(element);
  magnitude = magnitude < largest ? magnitude : largest;
  // The last place of a float from 2^23 on is 1: the sum is the quotient, rounded to an integer.
  const auto rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) / scale + 0x1p23f);
  const std::uint32_t sign = 0u - (std::bit_cast<std::uint32_t>(element) >> 31);
  return (rounded ^ sign) - sign;
}

/// Whether a scale, of any bits, makes its block NaN.
[[nodiscard]] constexpr bool decodes_to_nan(std::uint16_t scale) noexcept {
  return (scale & 0x7C00u) == 0x7C00u;
}

/// The value of all elements of such a block.
[[nodiscard]] constexpr float block_nan() noexcept {
  return std::bit_cast<float>(0x7FC00000u);
}

/// The number that a value stands for in a block that is not NaN.
[[nodiscard]] constexpr float block_element(std::int8_t value, float scale) noexcept {
  return static_cast<float>(value) * scale;
}

}  // namespace stateport::convert
