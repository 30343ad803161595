// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_encoding.hpp"
#include "byte_copy.hpp"
#include "copy_table.hpp"
#include "element_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Copies of tensors in blocks. `lane` of `lanes` threads share one range of blocks. Where slots are aligned and rows
/// are whole blocks, a lane encodes a block with 16-byte accesses and decodes eight elements at a time; elsewhere it
/// takes a block element by element.
namespace stateport::kernels {

inline constexpr auto block_elements = static_cast<std::uint32_t>(BlockLayout::block_elements);

/// An element of type fp32, fp16 or bf16. Any alignment.
KOKKOS_INLINE_FUNCTION float load_element(const std::byte* at, ElementType type) {
  if (type == ElementType::fp32) {
    float bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
  }
  std::uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  return type == ElementType::fp16 ? Fp16::load(bits) : Bf16::load(bits);
}
KOKKOS_INLINE_FUNCTION void store_element(std::byte* at, ElementType type, float element) {
  if (type == ElementType::fp32) {
    memcpy(at, &element, sizeof element);
    return;
  }
  const std::uint16_t bits = type == ElementType::fp16 ? Fp16::store(element) : Bf16::store(element);
  memcpy(at, &bits, sizeof bits);
}

/// Encodes `count` elements as one block. Any alignment.
KOKKOS_INLINE_FUNCTION void encode_block(std::byte* values, std::byte* scale_at, const std::byte* src, ElementType type,
                                         std::uint32_t count) {
  const auto bytes = static_cast<std::uint32_t>(element_bytes(type));
  std::int32_t magnitude = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::int32_t bits = convert::magnitude_bits(load_element(src + k * bytes, type));
    magnitude = magnitude < bits ? bits : magnitude;
  }
  const std::uint16_t scale = convert::block_scale(magnitude);
  const float divisor = convert::fp16_to_fp32(scale);
  const bool divides = convert::divides(scale);
  for (std::uint32_t k = 0; k < count; ++k)
    values[k] =
        static_cast<std::byte>(divides ? convert::block_value(load_element(src + k * bytes, type), divisor) : 0);
  memcpy(scale_at, &scale, sizeof scale);
}

/// Decodes `count` elements of one block. Any alignment.
KOKKOS_INLINE_FUNCTION void decode_block(std::byte* dst, ElementType type, const std::byte* values,
                                         const std::byte* scale_at, std::uint32_t count) {
  const auto bytes = static_cast<std::uint32_t>(element_bytes(type));
  std::uint16_t scale;
  memcpy(&scale, scale_at, sizeof scale);
  const float factor = convert::fp16_to_fp32(scale);
  const bool nan = convert::decodes_to_nan(scale);
  for (std::uint32_t k = 0; k < count; ++k)
    store_element(dst + k * bytes, type,
                  nan ? convert::block_nan() : convert::block_element(static_cast<std::int8_t>(values[k]), factor));
}

/// Eight encoded elements.
struct alignas(8) ValuePack {
  static constexpr std::uint32_t size = 8;
  std::uint32_t word[2];
};
inline constexpr std::uint32_t packs_of_block = block_elements / ValuePack::size;
/// Packs of a lane that are read before the first is written.
inline constexpr std::uint32_t block_packs_in_flight = 2;

template <class From>
KOKKOS_INLINE_FUNCTION std::int32_t magnitude_of(const Pack<typename From::Bits>& pack) {
  std::int32_t magnitude = 0;
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < ValuePack::size; ++k) {
    const std::int32_t bits = convert::magnitude_bits(From::load(pack.element[k]));
    magnitude = magnitude < bits ? bits : magnitude;
  }
  return magnitude;
}

/// The largest magnitude in the block of pack `i` of `packs`, where it is `own` in the pack itself. Four neighbouring
/// lanes have the packs of a block and call this together. Lanes of a host do not run in step: they look at all packs.
template <class From>
KOKKOS_INLINE_FUNCTION std::int32_t magnitude_of_block(const Pack<typename From::Bits>* packs, std::uint64_t i,
                                                       std::int32_t own) {
  static_assert(packs_of_block == 4);
#if defined(__CUDA_ARCH__)
  static_cast<void>(packs);
  static_cast<void>(i);
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  const unsigned block = 0xFu << (lane & ~3u);
  own = Kokkos::max(own, __shfl_xor_sync(block, own, 1));
  return Kokkos::max(own, __shfl_xor_sync(block, own, 2));
#elif defined(__HIP_DEVICE_COMPILE__)
  static_cast<void>(packs);
  static_cast<void>(i);
  own = Kokkos::max(own, __shfl_xor(own, 1));
  return Kokkos::max(own, __shfl_xor(own, 2));
#else
  const std::uint64_t first = i / packs_of_block * packs_of_block;
  for (std::uint64_t k = first; k < first + packs_of_block; ++k) {
    const std::int32_t other = magnitude_of<From>(packs[k]);
    own = own < other ? other : own;
  }
  return own;
#endif
}

/// Encodes whole blocks at aligned addresses. On a device, `lanes` is a multiple of 4.
template <class From>
KOKKOS_INLINE_FUNCTION void encode_whole_blocks(std::uint32_t lane, std::uint32_t lanes, ValuePack* values,
                                                std::uint16_t* scales, const Pack<typename From::Bits>* src,
                                                std::uint32_t count) {
  using FromPack = Pack<typename From::Bits>;
  move_in_groups<block_packs_in_flight>(
      lane, lanes, count * packs_of_block, [&](std::uint64_t i) { return src[i]; },
      [&](std::uint64_t i, const FromPack& in) {
        const std::uint16_t scale = convert::block_scale(magnitude_of_block<From>(src, i, magnitude_of<From>(in)));
        ValuePack out = {};
        if (convert::divides(scale)) {
          const float divisor = convert::fp16_to_fp32(scale);
          STATEPORT_UNROLL
          for (std::uint32_t k = 0; k < ValuePack::size; ++k) {
            const std::uint32_t value = convert::block_value(From::load(in.element[k]), divisor);
            out.word[k / 4] |= (value & 0xFFu) << (8 * (k % 4));
          }
        }
        values[i] = out;
        if (i % packs_of_block == 0) scales[i / packs_of_block] = scale;
      });
}

/// Decodes whole blocks at aligned addresses.
template <class To>
KOKKOS_INLINE_FUNCTION void decode_whole_blocks(std::uint32_t lane, std::uint32_t lanes, Pack<typename To::Bits>* dst,
                                                const ValuePack* values, const std::uint16_t* scales,
                                                std::uint32_t count) {
  struct Loaded {
    ValuePack values;
    std::uint16_t scale;
  };
  constexpr std::uint32_t packs = block_elements / ValuePack::size;
  constexpr std::uint32_t in_flight = 2;
  move_in_groups<in_flight>(
      lane, lanes, count * packs,
      [&](std::uint64_t i) {
        return Loaded{values[i], scales[i / packs]};
      },
      [&](std::uint64_t i, const Loaded& in) {
        const float factor = convert::fp16_to_fp32(in.scale);
        const bool nan = convert::decodes_to_nan(in.scale);
        Pack<typename To::Bits> out;
        STATEPORT_UNROLL
        for (std::uint32_t k = 0; k < ValuePack::size; ++k) {
          const auto value = static_cast<std::int8_t>(in.values.word[k / 4] >> (8 * (k % 4)));
          const float element = convert::block_element(value, factor);
          out.element[k] = To::store(nan ? convert::block_nan() : element);
        }
        dst[i] = out;
      });
}

/// Whether a slot in blocks, where a block begins at `values` and its scale lies at `scales`, and `elements` of another
/// slot can be taken with the widest accesses. Such loops are there for the types of live states, fp32 and bf16.
KOKKOS_INLINE_FUNCTION bool takes_whole_blocks(const TensorRoute& route, ElementType type, const std::byte* values,
                                               const std::byte* scales, const std::byte* elements) {
  return type != ElementType::fp16 && route.dim % block_elements == 0 && is_aligned(values, 16) &&
         is_aligned(scales, 2) && is_aligned(elements, 16);
}

KOKKOS_INLINE_FUNCTION void encode_blocks(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                          std::byte* dst, const std::byte* src, std::uint32_t first,
                                          std::uint32_t count) {
  const ElementType type = route.src_type;
  const std::uint64_t bytes = element_bytes(type);
  std::byte* const values = dst + route.block_begin(first);
  std::byte* const scales = dst + route.scale_offset(first);
  const std::byte* const elements = src + route.block_begin(first) * bytes;
  if (takes_whole_blocks(route, type, values, scales, elements)) {
    auto* const packs = reinterpret_cast<ValuePack*>(values);
    auto* const halves = reinterpret_cast<std::uint16_t*>(scales);
    if (type == ElementType::bf16)
      return encode_whole_blocks<Bf16>(lane, lanes, packs, halves, reinterpret_cast<const Pack<Bf16::Bits>*>(elements),
                                       count);
    return encode_whole_blocks<Fp32>(lane, lanes, packs, halves, reinterpret_cast<const Pack<Fp32::Bits>*>(elements),
                                     count);
  }
  for (std::uint32_t block = first + lane; block < first + count; block += lanes) {
    const std::uint64_t begin = route.block_begin(block);
    encode_block(dst + begin, dst + route.scale_offset(block), src + begin * bytes, type,
                 static_cast<std::uint32_t>(route.block_begin(block + 1) - begin));
  }
}

KOKKOS_INLINE_FUNCTION void decode_blocks(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                          std::byte* dst, const std::byte* src, std::uint32_t first,
                                          std::uint32_t count) {
  const ElementType type = route.dst_type;
  const std::uint64_t bytes = element_bytes(type);
  const std::byte* const values = src + route.block_begin(first);
  const std::byte* const scales = src + route.scale_offset(first);
  std::byte* const elements = dst + route.block_begin(first) * bytes;
  if (takes_whole_blocks(route, type, values, scales, elements)) {
    const auto* const packs = reinterpret_cast<const ValuePack*>(values);
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(scales);
    if (type == ElementType::bf16)
      return decode_whole_blocks<Bf16>(lane, lanes, reinterpret_cast<Pack<Bf16::Bits>*>(elements), packs, halves,
                                       count);
    return decode_whole_blocks<Fp32>(lane, lanes, reinterpret_cast<Pack<Fp32::Bits>*>(elements), packs, halves, count);
  }
  for (std::uint32_t block = first + lane; block < first + count; block += lanes) {
    const std::uint64_t begin = route.block_begin(block);
    decode_block(dst + begin * bytes, type, src + begin, src + route.scale_offset(block),
                 static_cast<std::uint32_t>(route.block_begin(block + 1) - begin));
  }
}

/// The elements, or values, of a range of blocks.
struct BlockElements {
  std::uint64_t first;
  std::uint32_t count;
};
KOKKOS_INLINE_FUNCTION BlockElements elements_of(const TensorRoute& route, std::uint32_t first, std::uint32_t count) {
  const std::uint64_t begin = route.block_begin(first);
  return {.first = begin, .count = static_cast<std::uint32_t>(route.block_begin(first + count) - begin)};
}

/// The work on blocks [first, first + count) beyond a copy of elements_of() them as in any other tensor: encoding or
/// decoding, after which nothing is left and the answer is true, or the scales of blocks that stay as they are. `src`,
/// `dst`: starts of the two slots.
KOKKOS_INLINE_FUNCTION bool copy_blocks(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                        std::byte* dst, const std::byte* src, std::uint32_t first,
                                        std::uint32_t count) {
  const bool decodes = in_blocks(route.src_type);
  const bool encodes = in_blocks(route.dst_type);
  if (encodes && decodes) {
    for (std::uint32_t block = first + lane; block < first + count; block += lanes)
      copy_element(dst + route.scale_offset(block), src + route.scale_offset(block), BlockLayout::scale_bytes);
  } else if (encodes) {
    encode_blocks(lane, lanes, route, dst, src, first, count);
  } else if (decodes) {
    decode_blocks(lane, lanes, route, dst, src, first, count);
  }
  return encodes != decodes;
}

/// Zeroes blocks [first, first + count) of a destination slot, and their scales if it has any.
KOKKOS_INLINE_FUNCTION void zero_blocks(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                        std::byte* dst, std::uint32_t first, std::uint32_t count) {
  const BlockElements range = elements_of(route, first, count);
  zero_bytes_by_lanes(lane, lanes, dst + range.first * route.element_bytes, range.count * route.element_bytes);
  if (in_blocks(route.dst_type))
    zero_bytes_by_lanes(lane, lanes, dst + route.scale_offset(first),
                        count * static_cast<std::uint32_t>(BlockLayout::scale_bytes));
}

}  // namespace stateport::kernels
