// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>

#include "block_encoding.hpp"
#include "element_convert.hpp"
#include "store_image.hpp"

#include <cstring>

/// Serial references of the slot kernels: element by element, no tiles, no words. The oracle on every backend.
namespace stateport::test::reference {

inline float load(const std::byte* at, ElementType type) {
  if (type == ElementType::fp32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return type == ElementType::bf16 ? convert::bf16_to_fp32(half) : convert::fp16_to_fp32(half);
}

inline void store(std::byte* at, ElementType type, float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (type == ElementType::bf16) bits = convert::fp32_to_bf16(value);
  if (type == ElementType::fp16) bits = convert::fp32_to_fp16(value);
  std::memcpy(at, &bits, element_bytes(type));
}

/// Offset of element (t, c) of a conv state, of element t * dim + c of a recurrent one.
inline std::int64_t element_index(const StateTensorSpec& spec, std::int64_t t, std::int64_t c) {
  if (spec.kind == StateKind::recurrent) return t * spec.dim() + c;
  return t * spec.conv_strides().token + c * spec.conv_strides().channel;
}

/// One block of `count` elements: fp32, fp16 or bf16 into int8_block32.
inline void encode_block(const std::byte* src, ElementType from, std::int64_t count, std::byte* values,
                         std::byte* scale_at) {
  const auto element = [&](std::int64_t k) {
    return load(src + k * static_cast<std::int64_t>(element_bytes(from)), from);
  };
  std::int32_t magnitude = 0;
  for (std::int64_t k = 0; k < count; ++k) magnitude = std::max(magnitude, convert::magnitude_bits(element(k)));
  const std::uint16_t scale = convert::block_scale(magnitude);
  std::memcpy(scale_at, &scale, sizeof scale);
  for (std::int64_t k = 0; k < count; ++k)
    values[k] = convert::divides(scale)
                    ? static_cast<std::byte>(convert::block_value(element(k), convert::fp16_to_fp32(scale)))
                    : std::byte{0};
}

inline void decode_block(const std::byte* values, const std::byte* scale_at, std::int64_t count, std::byte* dst,
                         ElementType to) {
  std::uint16_t scale;
  std::memcpy(&scale, scale_at, sizeof scale);
  for (std::int64_t k = 0; k < count; ++k)
    store(dst + k * static_cast<std::int64_t>(element_bytes(to)), to,
          convert::decodes_to_nan(scale)
              ? convert::block_nan()
              : convert::block_element(static_cast<std::int8_t>(values[k]), convert::fp16_to_fp32(scale)));
}

/// Into or out of a slot in blocks, whose layout the drawing of BlockLayout shows.
inline void copy_blocks(const std::byte* src, const StateTensorSpec& from, std::byte* dst, const StateTensorSpec& to) {
  const std::int64_t row = from.shape[2] > 1 ? from.shape[2] : from.shape[1] > 1 ? from.shape[1] : from.shape[0];
  const auto in = static_cast<std::int64_t>(element_bytes(from.type));
  const auto out = static_cast<std::int64_t>(element_bytes(to.type));
  std::int64_t block = 0;
  for (std::int64_t begin = 0; begin < from.element_count(); begin += row)
    for (std::int64_t column = 0; column < row; column += 32, ++block) {
      const std::int64_t count = std::min<std::int64_t>(32, row - column);
      const std::int64_t at = begin + column;
      const std::int64_t scale_at = from.element_count() + 2 * block;
      if (in_blocks(to.type))
        encode_block(src + at * in, from.type, count, dst + at, dst + scale_at);
      else
        decode_block(src + at, src + scale_at, count, dst + at * out, to.type);
    }
}

inline void copy_tensor(const std::byte* src, const StateTensorSpec& from, std::byte* dst, const StateTensorSpec& to) {
  if (in_blocks(from.type) != in_blocks(to.type)) return copy_blocks(src, from, dst, to);
  if (in_blocks(from.type)) {
    std::memcpy(dst, src, from.natural_bytes());
    return;
  }
  const std::int64_t columns = from.element_count() / from.shape[0];
  for (std::int64_t t = 0; t < from.shape[0]; ++t)
    for (std::int64_t c = 0; c < columns; ++c) {
      const bool conv = from.kind == StateKind::conv;
      const std::int64_t in = conv ? element_index(from, t, c) : t * columns + c;
      const std::int64_t out = conv ? element_index(to, t, c) : t * columns + c;
      const std::byte* s = src + in * static_cast<std::int64_t>(element_bytes(from.type));
      std::byte* d = dst + out * static_cast<std::int64_t>(element_bytes(to.type));
      if (from.type == to.type)
        std::memcpy(d, s, element_bytes(to.type));
      else
        store(d, to.type, load(s, from.type));
    }
}

inline void copy_slots(StoreImage& src, StoreImage& dst, CopyPlan plan) {
  for (const SlotCopy& copy : plan)
    for (std::size_t i = 0; i < src.tensor_count(); ++i) {
      const std::int32_t from = src.tensor(i).kind == StateKind::conv ? copy.src_slot : copy.recurrent_src_slot;
      if (from < 0 || copy.dst_slot < 0 || (&src == &dst && from == copy.dst_slot)) continue;
      copy_tensor(src.slot(i, from), src.tensor(i), dst.slot(i, copy.dst_slot), dst.tensor(i));
    }
}

inline void move_element(std::byte* dst, ElementType to, const std::byte* src, ElementType from) {
  if (from == to)
    std::memmove(dst, src, element_bytes(to));
  else
    store(dst, to, load(src, from));
}

/// Tokens [shift, window) → [0, window - shift), lowest token first, so that source and destination may be one slot.
inline void shift_conv(const std::byte* src, const StateTensorSpec& from, std::byte* dst, const StateTensorSpec& to,
                       std::int64_t shift) {
  const auto in = static_cast<std::int64_t>(element_bytes(from.type));
  const auto out = static_cast<std::int64_t>(element_bytes(to.type));
  for (std::int64_t t = 0; t + shift < from.window(); ++t)
    for (std::int64_t c = 0; c < from.dim(); ++c)
      move_element(dst + element_index(to, t, c) * out, to.type, src + element_index(from, t + shift, c) * in,
                   from.type);
}

inline void copy_shifted(StoreImage& src, StoreImage& dst, CopyPlan plan) {
  for (const SlotCopy& copy : plan)
    for (std::size_t i = 0; copy.dst_slot >= 0 && i < src.tensor_count(); ++i) {
      const bool conv = src.tensor(i).kind == StateKind::conv;
      const std::int32_t from = conv ? copy.src_slot : copy.recurrent_src_slot;
      if (from < 0) continue;
      if (conv)
        shift_conv(src.slot(i, from), src.tensor(i), dst.slot(i, copy.dst_slot), dst.tensor(i), copy.conv_shift);
      else if (&src != &dst || from != copy.dst_slot)
        copy_tensor(src.slot(i, from), src.tensor(i), dst.slot(i, copy.dst_slot), dst.tensor(i));
    }
}

inline void clear_slots(StoreImage& dst, std::span<const SlotId> slots) {
  for (const SlotId slot : slots)
    for (std::size_t i = 0; slot.valid() && i < dst.tensor_count(); ++i) {
      const StateTensorSpec& spec = dst.tensor(i);
      if (in_blocks(spec.type)) std::memset(dst.slot(i, slot.value()), 0, spec.natural_bytes());
      const std::int64_t columns = spec.element_count() / spec.shape[0];
      for (std::int64_t t = 0; t < spec.shape[0]; ++t)
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t at = spec.kind == StateKind::conv ? element_index(spec, t, c) : t * columns + c;
          std::memset(dst.slot(i, slot.value()) + at * static_cast<std::int64_t>(element_bytes(spec.type)), 0,
                      element_bytes(spec.type));
        }
    }
}

}  // namespace stateport::test::reference
