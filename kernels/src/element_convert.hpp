// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

/// Conversions between fp32 and the 16-bit float types as functions of bits, so that host and device agree to the last
/// bit. Rounding is to nearest, ties to even; NaN stays NaN (quiet); overflow gives infinity; fp16 subnormals are kept.
namespace stateport::convert {

[[nodiscard]] constexpr float bf16_to_fp32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[nodiscard]] constexpr std::uint16_t fp32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

[[nodiscard]] constexpr float fp16_to_fp32(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  // Zero or subnormal: magnitude * 2^-24, exact in fp32.
  const float scaled = static_cast<float>(magnitude) * std::bit_cast<float>((127u - 24u) << 23);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

[[nodiscard]] constexpr std::uint16_t fp32_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // rounds to >= 2^16
  if (magnitude >= 0x38800000u) {                                                   // normal: >= 2^-14
    const std::uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;              // below half of the smallest subnormal
  const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 … 24
  const std::uint32_t significand = (magnitude & 0x007FFFFFu) | 0x00800000u;
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t rest = significand & ((1u << shift) - 1u);
  const std::uint32_t half = 1u << (shift - 1u);
  const std::uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0u)) ? 1u : 0u;
  return static_cast<std::uint16_t>(sign | (kept + up));
}

}  // namespace stateport::convert
