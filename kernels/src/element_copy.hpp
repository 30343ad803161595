// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "byte_copy.hpp"
#include "copy_table.hpp"
#include "element_convert.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

/// Element-wise copies: conversion between fp32, fp16 and bf16, and conv states whose strides differ or leave gaps.
/// `lane` of `lanes` threads share one range; a CPU thread is lane 0 of 1.
namespace stateport::kernels {

struct Fp32 {
  using Bits = float;
  KOKKOS_INLINE_FUNCTION static float load(Bits bits) { return bits; }
  KOKKOS_INLINE_FUNCTION static Bits store(float value) { return value; }
};
struct Fp16 {
  using Bits = std::uint16_t;
  KOKKOS_INLINE_FUNCTION static float load(Bits bits) { return convert::fp16_to_fp32(bits); }
  KOKKOS_INLINE_FUNCTION static Bits store(float value) { return convert::fp32_to_fp16(value); }
};
struct Bf16 {
  using Bits = std::uint16_t;
  KOKKOS_INLINE_FUNCTION static float load(Bits bits) { return convert::bf16_to_fp32(bits); }
  KOKKOS_INLINE_FUNCTION static Bits store(float value) { return convert::fp32_to_bf16(value); }
};

/// Eight elements, loaded and stored with 16-byte accesses.
template <class Bits>
struct alignas(16) Pack {
  static constexpr std::uint32_t size = 8;
  Bits element[size];
};

/// Packs that a thread loads before it stores the first: two of fp32, which are four loads, where they become bf16.
/// Other conversions use the registers of a second pack for their results.
template <class From, class To>
inline constexpr std::uint32_t packs_in_flight = std::is_same_v<From, Fp32>&& std::is_same_v<To, Bf16> ? 2 : 1;

KOKKOS_INLINE_FUNCTION bool is_aligned(const void* address, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

/// Converts src[0, count) → dst[0, count). Any alignment: packs where both sides allow it, memcpy elsewhere.
template <class From, class To>
KOKKOS_INLINE_FUNCTION void convert_range(std::uint32_t lane, std::uint32_t lanes, std::byte* dst, const std::byte* src,
                                          std::uint32_t count) {
  using FromPack = Pack<typename From::Bits>;
  using ToPack = Pack<typename To::Bits>;
  std::uint32_t done = 0;
  if (is_aligned(src, alignof(FromPack)) && is_aligned(dst, alignof(ToPack))) {
    const auto* from = reinterpret_cast<const FromPack*>(src);
    auto* to = reinterpret_cast<ToPack*>(dst);
    move_in_groups<packs_in_flight<From, To>>(
        lane, lanes, count / FromPack::size, [&](std::uint64_t i) { return from[i]; },
        [&](std::uint64_t i, const FromPack& in) {
          ToPack out;
          STATEPORT_UNROLL
          for (std::uint32_t k = 0; k < FromPack::size; ++k) out.element[k] = To::store(From::load(in.element[k]));
          to[i] = out;
        });
    done = count / FromPack::size * FromPack::size;
  }
  for (std::uint32_t i = done + lane; i < count; i += lanes) {
    typename From::Bits in;
    memcpy(&in, src + std::uint64_t{i} * sizeof in, sizeof in);
    const typename To::Bits out = To::store(From::load(in));
    memcpy(dst + std::uint64_t{i} * sizeof out, &out, sizeof out);
  }
}

template <class From>
KOKKOS_INLINE_FUNCTION void convert_range_from(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                               ElementType type, const std::byte* src, std::uint32_t count) {
  switch (type) {
    case ElementType::fp16:
      return convert_range<From, Fp16>(lane, lanes, dst, src, count);
    case ElementType::bf16:
      return convert_range<From, Bf16>(lane, lanes, dst, src, count);
    default:
      return convert_range<From, Fp32>(lane, lanes, dst, src, count);
  }
}

KOKKOS_INLINE_FUNCTION void convert_range(std::uint32_t lane, std::uint32_t lanes, std::byte* dst, ElementType dst_type,
                                          const std::byte* src, ElementType src_type, std::uint32_t count) {
  switch (src_type) {
    case ElementType::fp16:
      return convert_range_from<Fp16>(lane, lanes, dst, dst_type, src, count);
    case ElementType::bf16:
      return convert_range_from<Bf16>(lane, lanes, dst, dst_type, src, count);
    default:
      return convert_range_from<Fp32>(lane, lanes, dst, dst_type, src, count);
  }
}

/// One element, in one access where both addresses allow it.
KOKKOS_INLINE_FUNCTION void copy_element(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
  if (bytes == 4 && is_aligned(src, 4) && is_aligned(dst, 4))
    *reinterpret_cast<std::uint32_t*>(dst) = *reinterpret_cast<const std::uint32_t*>(src);
  else if (bytes == 2 && is_aligned(src, 2) && is_aligned(dst, 2))
    *reinterpret_cast<std::uint16_t*>(dst) = *reinterpret_cast<const std::uint16_t*>(src);
  else
    for (std::uint64_t k = 0; k < bytes; ++k) dst[k] = src[k];
}

/// One element on its way from a source slot to a destination slot, converted if the types differ.
KOKKOS_INLINE_FUNCTION void move_element(const TensorRoute& route, std::byte* dst, const std::byte* src) {
  if (route.src_type == route.dst_type)
    copy_element(dst, src, route.element_bytes);
  else
    convert_range(0, 1, dst, route.dst_type, src, route.src_type, 1);
}

/// Elements [first, first + count) of one slot of a route that moves more than bytes, neither side in blocks. `src`,
/// `dst`: starts of the two slots.
KOKKOS_INLINE_FUNCTION void copy_elements(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                          std::byte* dst, const std::byte* src, std::uint64_t first,
                                          std::uint32_t count) {
  const auto dst_bytes = static_cast<std::uint64_t>(route.element_bytes);
  const std::uint64_t src_bytes = element_bytes(route.src_type);
  if (route.mode != TensorRoute::Mode::elements)
    return convert_range(lane, lanes, dst + first * dst_bytes, route.dst_type, src + first * src_bytes, route.src_type,
                         count);
  const auto first_element = static_cast<std::uint32_t>(first);
  for (std::uint32_t i = first_element + lane; i < first_element + count; i += lanes)
    move_element(route, dst + route.place(route.dst_strides, i) * dst_bytes,
                 src + route.place(route.src_strides, i) * src_bytes);
}

/// Zeroes elements [first, first + count) of a destination slot that has gaps, which stay as they are.
KOKKOS_INLINE_FUNCTION void zero_elements(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                          std::byte* dst, std::uint64_t first, std::uint32_t count) {
  const auto bytes = static_cast<std::uint64_t>(route.element_bytes);
  const auto first_element = static_cast<std::uint32_t>(first);
  for (std::uint32_t i = first_element + lane; i < first_element + count; i += lanes) {
    std::byte* const to = dst + route.place(route.dst_strides, i) * bytes;
    for (std::uint64_t k = 0; k < bytes; ++k) to[k] = std::byte{0};
  }
}

}  // namespace stateport::kernels
