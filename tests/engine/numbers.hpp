// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/element_type.hpp>

#include "element_convert.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// The maths is that of float32. States and KV are kept in fp32, fp16 or bf16: a value is rounded to the type when it
/// is written, so that it is the same in every store.
namespace stateport::engine {

[[nodiscard]] inline std::uint16_t to_half(ElementType type, float value) {
  return type == ElementType::fp16 ? convert::fp32_to_fp16(value) : convert::fp32_to_bf16(value);
}
[[nodiscard]] inline float from_half(ElementType type, std::uint16_t bits) {
  return type == ElementType::fp16 ? convert::fp16_to_fp32(bits) : convert::bf16_to_fp32(bits);
}

inline void load_numbers(ElementType type, const std::byte* from, std::span<float> to) {
  if (type == ElementType::fp32) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  for (float& value : to) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    value = from_half(type, bits);
    from += sizeof bits;
  }
}

inline void save_numbers(ElementType type, std::span<const float> from, std::byte* to) {
  if (type == ElementType::fp32) {
    std::memcpy(to, from.data(), from.size_bytes());
    return;
  }
  for (const float value : from) {
    const std::uint16_t bits = to_half(type, value);
    std::memcpy(to, &bits, sizeof bits);
    to += sizeof bits;
  }
}

inline void round_numbers(ElementType type, std::span<float> values) {
  if (type == ElementType::fp32) return;
  for (float& value : values) value = from_half(type, to_half(type, value));
}

}  // namespace stateport::engine
