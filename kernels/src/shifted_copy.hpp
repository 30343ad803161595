// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "copy_table.hpp"
#include "element_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// The conv part of a copy with bias: tokens [shift, window) of one slot → tokens [0, window - shift) of another, or of
/// the same one. In place, one lane owns a column of channels for all tokens and walks the tokens upwards, so what it
/// overwrites it has read: correct by construction, in any order of lanes and teams.
namespace stateport::kernels {

/// Moves one channel word through the tokens: byte offset `at` of token t + shift → the same offset of token t. Four
/// tokens are read before the first is written: where they go, nothing is read any more.
template <class Word>
KOKKOS_INLINE_FUNCTION void shift_columns(std::uint32_t lane, std::uint32_t lanes, std::byte* slot,
                                          std::uint32_t token_bytes, std::uint32_t first_word, std::uint32_t last_word,
                                          std::uint32_t tokens, std::uint32_t shift) {
  for (std::uint32_t k = first_word + lane; k < last_word; k += lanes) {
    std::byte* const column = slot + std::uint64_t{k} * sizeof(Word);
    const auto token = [&](std::uint32_t t) -> Word& {
      return *reinterpret_cast<Word*>(column + std::uint64_t{t} * token_bytes);
    };
    std::uint32_t t = 0;
    for (; t + 3 + shift < tokens; t += 4) {
      const Word first = token(t + shift);
      const Word second = token(t + shift + 1);
      const Word third = token(t + shift + 2);
      const Word fourth = token(t + shift + 3);
      token(t) = first;
      token(t + 1) = second;
      token(t + 2) = third;
      token(t + 3) = fourth;
    }
    for (; t + shift < tokens; ++t) token(t) = token(t + shift);
  }
}

/// Channels [first, last) of an sd tensor in place: words as wide as address and token size allow. Neighbouring ranges
/// round a boundary alike, so every word has one owner.
template <class WidestWord>
KOKKOS_INLINE_FUNCTION void shift_sd_in_place(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                              std::byte* slot, std::uint32_t shift, std::uint32_t first,
                                              std::uint32_t last) {
  const auto element = static_cast<std::uint32_t>(route.element_bytes);
  const std::uint32_t token_bytes = route.dim * element;
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(slot) | token_bytes;
  const auto shift_as = [&](auto word) {
    using Word = decltype(word);
    constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word));
    shift_columns<Word>(lane, lanes, slot, token_bytes, first * element / word_bytes, last * element / word_bytes,
                        route.window, shift);
  };
  if (alignment % sizeof(WidestWord) == 0) return shift_as(WidestWord{});
  if (alignment % 4 == 0) return shift_as(std::uint32_t{});
  if (alignment % 2 == 0) return shift_as(std::uint16_t{});
  shift_as(std::uint8_t{});
}

/// Channels [first, last) of a ds tensor: a lane owns the row of a channel.
KOKKOS_INLINE_FUNCTION void shift_ds(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route, std::byte* dst,
                                     const std::byte* src, std::uint32_t shift, std::uint32_t first,
                                     std::uint32_t last) {
  const auto element = static_cast<std::uint32_t>(route.element_bytes);
  const std::uint32_t row_bytes = route.window * element;
  const std::uint32_t shift_bytes = shift * element;
  const std::uint64_t alignment =
      reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src) | element;
  const auto shift_as = [&](auto word) {
    using Word = decltype(word);
    for (std::uint32_t c = first + lane; c < last; c += lanes) {
      const std::uint64_t row = std::uint64_t{c} * row_bytes;
      for (std::uint32_t at = 0; at + shift_bytes < row_bytes; at += static_cast<std::uint32_t>(sizeof(Word)))
        *reinterpret_cast<Word*>(dst + row + at) = *reinterpret_cast<const Word*>(src + row + at + shift_bytes);
    }
  };
  if (alignment % 8 == 0) return shift_as(std::uint64_t{});
  if (alignment % 4 == 0) return shift_as(std::uint32_t{});
  if (alignment % 2 == 0) return shift_as(std::uint16_t{});
  shift_as(std::uint8_t{});
}

/// Channels [first, last) of a route in any mode: a lane owns all tokens of a channel.
KOKKOS_INLINE_FUNCTION void shift_elements(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                           std::byte* dst, const std::byte* src, std::uint32_t shift,
                                           std::uint32_t first, std::uint32_t last) {
  const auto dst_bytes = static_cast<std::uint64_t>(route.element_bytes);
  const std::uint64_t src_bytes = element_bytes(route.src_type);
  for (std::uint32_t c = first + lane; c < last; c += lanes)
    for (std::uint32_t t = 0; t + shift < route.window; ++t)
      move_element(route, dst + route.dst_strides.at(t, c) * dst_bytes,
                   src + route.src_strides.at(t + shift, c) * src_bytes);
}

/// The share of elements [first, first + count) of a conv tensor's slot in its shift. `copy(dst, src, bytes)` moves a
/// contiguous range between two slots. 0 < shift; a shift of the whole window or more moves nothing. `elementwise`: the
/// route may be in another mode than bytes. Conv tensors have fewer than 2^32 bytes.
template <bool elementwise, class WidestWord, class CopyBytes>
KOKKOS_INLINE_FUNCTION void copy_shifted_conv(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                              std::byte* dst, const std::byte* src, std::int32_t shift,
                                              std::uint64_t first_element, std::uint32_t count, const CopyBytes& copy) {
  const std::uint32_t window = route.window;
  const auto tokens = static_cast<std::uint32_t>(shift);
  if (tokens >= window) return;
  const auto first = static_cast<std::uint32_t>(first_element);
  if constexpr (elementwise)
    if (route.mode != TensorRoute::Mode::bytes)
      return shift_elements(lane, lanes, route, dst, src, tokens, first / window, (first + count) / window);
  if (route.token_inner)
    return shift_ds(lane, lanes, route, dst, src, tokens, first / window, (first + count) / window);
  if (dst == src)
    return shift_sd_in_place<WidestWord>(lane, lanes, route, dst, tokens, first / window, (first + count) / window);
  const auto element = static_cast<std::uint32_t>(route.element_bytes);
  const std::uint32_t skipped = tokens * route.dim;
  const std::uint32_t kept = window * route.dim - skipped;
  if (first >= kept) return;
  if (count > kept - first) count = kept - first;
  copy(dst + std::uint64_t{first} * element, src + (std::uint64_t{first} + skipped) * element, count * element);
}

}  // namespace stateport::kernels
