// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stateport {

/// Element type of a state tensor. Conversion kernels handle fp32, fp16 and bf16; the others are moved bit for bit.
enum class ElementType : std::uint8_t { fp32, fp16, bf16, fp64, fp8, int8 };

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
  }
  return "?";
}

/// True for the types that dtype conversion reads and writes.
[[nodiscard]] constexpr bool convertible(ElementType type) noexcept {
  return type == ElementType::fp32 || type == ElementType::fp16 || type == ElementType::bf16;
}

}  // namespace stateport
