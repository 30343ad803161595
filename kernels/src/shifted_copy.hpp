// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

#include "copy_table.hpp"

/// The conv part of a copy with bias: tokens [shift, window) of one slot → tokens [0, window - shift) of another, or of
/// the same one. In place, one lane owns a column of channels for all tokens and walks the tokens upwards, so what it
/// overwrites it has read: correct by construction, in any order of lanes and teams.
namespace stateport::kernels {

/// Moves one channel word through the tokens: byte offset `at` of token t + shift → the same offset of token t.
template <class Word>
KOKKOS_INLINE_FUNCTION void shift_columns(std::uint64_t lane, std::uint64_t lanes, std::byte* dst, const std::byte* src,
                                          std::uint64_t token_bytes, std::uint64_t first_word, std::uint64_t last_word,
                                          std::int64_t tokens, std::int64_t shift) {
  for (std::uint64_t k = first_word + lane; k < last_word; k += lanes)
    for (std::int64_t t = 0; t + shift < tokens; ++t)
      *reinterpret_cast<Word*>(dst + static_cast<std::uint64_t>(t) * token_bytes + k * sizeof(Word)) =
          *reinterpret_cast<const Word*>(src + static_cast<std::uint64_t>(t + shift) * token_bytes + k * sizeof(Word));
}

/// Channels [first, last) of an sd tensor in place: words as wide as address and token size allow. Neighbouring ranges
/// round a boundary alike, so every word has one owner.
template <class WidestWord>
KOKKOS_INLINE_FUNCTION void shift_sd_in_place(std::uint64_t lane, std::uint64_t lanes, const TensorRoute& route,
                                              std::byte* slot, std::int64_t shift, std::uint64_t first,
                                              std::uint64_t last) {
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  const std::uint64_t token_bytes = static_cast<std::uint64_t>(route.dim) * element;
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(slot) | token_bytes;
  const auto shift_as = [&](auto word) {
    using Word = decltype(word);
    shift_columns<Word>(lane, lanes, slot, slot, token_bytes, first * element / sizeof(Word),
                        last * element / sizeof(Word), route.window, shift);
  };
  if (alignment % sizeof(WidestWord) == 0) return shift_as(WidestWord{});
  if (alignment % 4 == 0) return shift_as(std::uint32_t{});
  if (alignment % 2 == 0) return shift_as(std::uint16_t{});
  shift_as(std::uint8_t{});
}

/// Channels [first, last) of a ds tensor: a lane owns the row of a channel.
KOKKOS_INLINE_FUNCTION void shift_ds(std::uint64_t lane, std::uint64_t lanes, const TensorRoute& route, std::byte* dst,
                                     const std::byte* src, std::int64_t shift, std::uint64_t first,
                                     std::uint64_t last) {
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(route.window) * element;
  const std::uint64_t shift_bytes = static_cast<std::uint64_t>(shift) * element;
  const std::uint64_t alignment =
      reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src) | element;
  const auto shift_as = [&](auto word) {
    using Word = decltype(word);
    for (std::uint64_t c = first + lane; c < last; c += lanes)
      for (std::uint64_t at = c * row_bytes; at + shift_bytes < (c + 1) * row_bytes; at += sizeof(Word))
        *reinterpret_cast<Word*>(dst + at) = *reinterpret_cast<const Word*>(src + at + shift_bytes);
  };
  if (alignment % 8 == 0) return shift_as(std::uint64_t{});
  if (alignment % 4 == 0) return shift_as(std::uint32_t{});
  if (alignment % 2 == 0) return shift_as(std::uint16_t{});
  shift_as(std::uint8_t{});
}

/// The share of elements [first, first + count) of a conv tensor's slot in its shift. `copy(dst, src, bytes)` moves a
/// contiguous range between two slots. 0 < shift; a shift of the whole window
/// or more moves nothing, nor does one of a tensor whose type or layout changes.
template <class WidestWord, class CopyBytes>
KOKKOS_INLINE_FUNCTION void copy_shifted_conv(std::uint64_t lane, std::uint64_t lanes, const TensorRoute& route,
                                              std::byte* dst, const std::byte* src, std::int64_t shift,
                                              std::uint64_t first, std::uint64_t count, const CopyBytes& copy) {
  if (shift >= route.window || route.mode == TensorRoute::Mode::elements) return;
  const auto window = static_cast<std::uint64_t>(route.window);
  if (route.dst_layout == ConvLayout::ds)
    return shift_ds(lane, lanes, route, dst, src, shift, first / window, (first + count) / window);
  if (dst == src)
    return shift_sd_in_place<WidestWord>(lane, lanes, route, dst, shift, first / window, (first + count) / window);
  const auto element = static_cast<std::uint64_t>(route.element_bytes);
  const std::uint64_t kept = static_cast<std::uint64_t>((route.window - shift) * route.dim);
  if (first >= kept) return;
  if (count > kept - first) count = kept - first;
  copy(dst + first * element, src + (first + static_cast<std::uint64_t>(shift * route.dim)) * element, count * element);
}

}  // namespace stateport::kernels
