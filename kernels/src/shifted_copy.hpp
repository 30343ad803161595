// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "byte_copy.hpp"
#include "copy_table.hpp"
#include "element_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// The conv part of a copy with bias: tokens [shift, window) of one slot → tokens [0, window - shift) of another, or of
/// the same one. In place, no lane overwrites an element that another has yet to read: in sd, a lane owns columns of
/// channels and walks their tokens upwards; how rows of ds are shifted, the caller knows. Teams own different channels.
namespace stateport::kernels {

/// Tokens that a lane has read before it writes the first, where it does not have all of them in registers.
inline constexpr std::uint32_t tokens_in_flight = 4;

/// Moves `tokens` tokens from `src` to `dst` for words [first, last) of channels. A lane reads those of `columns` words
/// before it writes the first: where they go, nothing is read any more.
template <std::uint32_t tokens, std::uint32_t columns, class Word>
KOKKOS_INLINE_FUNCTION void move_tokens(std::uint32_t lane, std::uint32_t lanes, Word* dst, const Word* src,
                                        std::uint64_t token_words, std::uint32_t count) {
  struct Column {
    Word token[tokens];
  };
  move_in_groups<columns>(
      lane, lanes, count,
      [&](std::uint64_t k) {
        Column column;
        STATEPORT_UNROLL
        for (std::uint32_t t = 0; t < tokens; ++t) column.token[t] = src[k + t * token_words];
        return column;
      },
      [&](std::uint64_t k, const Column& column) {
        STATEPORT_UNROLL
        for (std::uint32_t t = 0; t < tokens; ++t) dst[k + t * token_words] = column.token[t];
      });
}

/// The same as shift_columns for a lane that is alone, as on a CPU: column by column, whose tokens share cache lines
/// with the next one's.
template <class Word>
KOKKOS_INLINE_FUNCTION void shift_columns_alone(Word* dst, const Word* src, std::uint64_t token_words,
                                                std::uint32_t count, std::uint32_t kept) {
  for (std::uint32_t k = 0; k < count; ++k) {
    const auto at = [&](std::uint32_t t) { return k + t * token_words; };
    std::uint32_t t = 0;
    for (; t + 3 < kept; t += 4) {
      const Word first = src[at(t)];
      const Word second = src[at(t + 1)];
      const Word third = src[at(t + 2)];
      const Word fourth = src[at(t + 3)];
      dst[at(t)] = first;
      dst[at(t + 1)] = second;
      dst[at(t + 2)] = third;
      dst[at(t + 3)] = fourth;
    }
    for (; t < kept; ++t) dst[at(t)] = src[at(t)];
  }
}

/// Words [0, count) of `kept` tokens in place, from `shift` tokens further. A lane has all tokens of a column in
/// registers if these are few words of 16 bytes. Fewer tokens leave room for several columns in flight.
template <class Word>
KOKKOS_INLINE_FUNCTION void shift_columns(std::uint32_t lane, std::uint32_t lanes, Word* slot,
                                          std::uint64_t token_words, std::uint32_t count, std::uint32_t kept,
                                          std::uint32_t shift) {
  const Word* const src = slot + shift * token_words;
  if (lanes == 1) return shift_columns_alone(slot, src, token_words, count, kept);
  if constexpr (sizeof(Word) == 16) switch (kept) {
      case 5:
        return move_tokens<5, 1>(lane, lanes, slot, src, token_words, count);
      case 4:
        return move_tokens<4, 1>(lane, lanes, slot, src, token_words, count);
      case 3:
        return move_tokens<3, 1>(lane, lanes, slot, src, token_words, count);
      case 2:
        return move_tokens<2, 2>(lane, lanes, slot, src, token_words, count);
      case 1:
        return move_tokens<1, 4>(lane, lanes, slot, src, token_words, count);
      default:
        break;
    }
  std::uint32_t t = 0;
  for (; t + tokens_in_flight <= kept; t += tokens_in_flight)
    move_tokens<tokens_in_flight, 1>(lane, lanes, slot + t * token_words, src + t * token_words, token_words, count);
  for (; t < kept; ++t)
    move_tokens<1, tokens_in_flight>(lane, lanes, slot + t * token_words, src + t * token_words, token_words, count);
}

/// The extents of a conv tensor.
struct ConvExtents {
  std::uint32_t window;
  std::uint32_t dim;
  std::uint32_t element_bytes;
};

/// Channels [first, last) of an sd tensor in place: words as wide as address and token size allow. Neighbouring ranges
/// round a boundary alike, so every word has one owner.
template <class WidestWord>
KOKKOS_INLINE_FUNCTION void shift_sd_in_place(std::uint32_t lane, std::uint32_t lanes, const ConvExtents& extents,
                                              std::byte* slot, std::uint32_t shift, std::uint32_t first,
                                              std::uint32_t last) {
  const std::uint32_t element = extents.element_bytes;
  const std::uint32_t token_bytes = extents.dim * element;
  const std::uint64_t alignment = reinterpret_cast<std::uintptr_t>(slot) | token_bytes;
  const auto shift_as = [&](auto word) {
    using Word = decltype(word);
    constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word));
    const std::uint32_t first_word = first * element / word_bytes;
    shift_columns(lane, lanes, reinterpret_cast<Word*>(slot) + first_word, std::uint64_t{token_bytes / word_bytes},
                  last * element / word_bytes - first_word, extents.window - shift, shift);
  };
  if (alignment % sizeof(WidestWord) == 0) return shift_as(WidestWord{});
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

/// How many of elements [first, first + count) a shift writes between two slots of an sd tensor. They come from
/// shift * dim elements further.
KOKKOS_INLINE_FUNCTION std::uint32_t shifted_sd_elements(const ConvExtents& extents, std::uint32_t shift,
                                                         std::uint32_t first, std::uint32_t count) {
  const std::uint32_t kept = (extents.window - shift) * extents.dim;
  if (first >= kept) return 0;
  return count < kept - first ? count : kept - first;
}

}  // namespace stateport::kernels
