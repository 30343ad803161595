// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "byte_copy.hpp"
#include "copy_table.hpp"
#include "state_sums.hpp"
#include "sum_table.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Sums that the lanes of a team share out. A CPU thread is lane 0 of 1.
namespace stateport::kernels {

KOKKOS_INLINE_FUNCTION void add_quad(PartSum& part, const Word16& quad, std::uint32_t first_word, ExponentMask mask) {
  part.add(quad.x, first_word, mask);
  part.add(quad.y, first_word + 1, mask);
  part.add(quad.z, first_word + 2, mask);
  part.add(quad.w, first_word + 3, mask);
}

/// A little-endian word of `bytes` bytes, 1 … 4. Any alignment.
KOKKOS_INLINE_FUNCTION std::uint32_t load_word(const std::byte* at, std::uint32_t bytes) {
  std::uint32_t word = 0;
  for (std::uint32_t k = 0; k < bytes; ++k) word |= static_cast<std::uint32_t>(at[k]) << (8 * k);
  return word;
}

/// Bytes of a slot without gaps, from word `first_word` on. Any alignment.
KOKKOS_INLINE_FUNCTION void add_bytes(std::uint32_t lane, std::uint32_t lanes, PartSum& part, const std::byte* src,
                                      std::uint32_t bytes, std::uint32_t first_word, ExponentMask mask) {
  const std::uint32_t words = bytes / 4;
  std::uint32_t done = 0;
  const auto misaligned = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(src) % sizeof(Word16));
  if (misaligned == 0) {
    const auto* const quads = reinterpret_cast<const Word16*>(src);
    move_in_groups<loads_in_flight>(
        lane, lanes, words / 4, [&](std::uint64_t i) { return quads[i]; },
        [&](std::uint64_t i, const Word16& quad) {
          add_quad(part, quad, first_word + 4 * static_cast<std::uint32_t>(i), mask);
        });
    done = words / 4 * 4;
  } else if (misaligned % 4 == 0) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(src);
    move_in_groups<loads_in_flight>(
        lane, lanes, words, [&](std::uint64_t i) { return from[i]; },
        [&](std::uint64_t i, std::uint32_t word) { part.add(word, first_word + static_cast<std::uint32_t>(i), mask); });
    done = words;
  }
  for (std::uint32_t i = done + lane; i < words; i += lanes)
    part.add(load_word(src + std::uint64_t{i} * 4, 4), first_word + i, mask);
  if (lane == 0 && bytes % 4 != 0)
    part.add(load_word(src + std::uint64_t{words} * 4, bytes % 4), first_word + words, mask);
}

/// Looks at the scales that begin in bytes [first, first + count) of a slot in blocks. `src`: the start of the slot.
KOKKOS_INLINE_FUNCTION void look_at_scales(std::uint32_t lane, std::uint32_t lanes, PartSum& part, const std::byte* src,
                                           std::uint64_t scales_begin, std::uint64_t first, std::uint32_t count) {
  const auto scales_before = [&](std::uint64_t byte) {
    return byte <= scales_begin ? 0 : (byte - scales_begin + 1) / 2;
  };
  const std::uint64_t end = scales_before(first + count);
  constexpr ExponentMask mask = exponent_mask(ElementType::fp16);
  for (std::uint64_t i = scales_before(first) + lane; i < end; i += lanes)
    part.exponents |= (load_word(src + scales_begin + 2 * i, 2) & mask.bits) + mask.units;
}

/// Elements [first, first + count) of a conv state with gaps. `src`: the start of the slot.
KOKKOS_INLINE_FUNCTION void add_elements(std::uint32_t lane, std::uint32_t lanes, PartSum& part,
                                         const TensorRoute& route, const std::byte* src, std::uint32_t first,
                                         std::uint32_t count, ExponentMask mask) {
  const std::uint32_t bytes = route.element_bytes;
  const std::uint32_t word_bytes = bytes < 4 ? bytes : 4;
  const std::uint32_t words = bytes / word_bytes;
  for (std::uint32_t i = first + lane; i < first + count; i += lanes) {
    const std::byte* const element = src + std::uint64_t{route.place(route.src_strides, i)} * bytes;
    for (std::uint32_t k = 0; k < words; ++k)
      part.add(load_word(element + std::uint64_t{k} * 4, word_bytes), i * words + k, mask);
  }
}

/// Elements [first, first + count) of a tensor in a slot of a SumTable that begins at `src`.
KOKKOS_INLINE_FUNCTION void add_range(std::uint32_t lane, std::uint32_t lanes, PartSum& part, const TensorRoute& route,
                                      const SumRule& rule, const std::byte* src, std::uint64_t first,
                                      std::uint32_t count) {
  if (route.mode == TensorRoute::Mode::elements)
    return add_elements(lane, lanes, part, route, src, static_cast<std::uint32_t>(first), count, rule.exponents);
  add_bytes(lane, lanes, part, src + first, count, static_cast<std::uint32_t>(first / 4), rule.exponents);
  if (rule.scales_begin != 0) look_at_scales(lane, lanes, part, src, rule.scales_begin, first, count);
}

}  // namespace stateport::kernels
