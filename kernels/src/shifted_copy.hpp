// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "byte_copy.hpp"
#include "copy_table.hpp"
#include "element_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// The conv part of a copy with bias: tokens [shift, window) of one slot → tokens [0, window - shift) of another, or of
/// the same one. In place, nothing is overwritten before all that need it have read it: in sd, one lane owns a column
/// of channels for all tokens and walks the tokens upwards; in ds, the lanes of a team read together and then write
/// together. Teams own different channels.
namespace stateport::kernels {

/// Tokens that a lane has read before it writes the first.
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

/// Words [0, count) of `kept` tokens in place, from `shift` tokens further. Few tokens leave room for several columns
/// in flight.
template <class Word>
KOKKOS_INLINE_FUNCTION void shift_columns(std::uint32_t lane, std::uint32_t lanes, Word* slot,
                                          std::uint64_t token_words, std::uint32_t count, std::uint32_t kept,
                                          std::uint32_t shift) {
  const Word* const src = slot + shift * token_words;
  if (lanes == 1) return shift_columns_alone(slot, src, token_words, count, kept);
  std::uint32_t t = 0;
  for (; t + tokens_in_flight <= kept; t += tokens_in_flight)
    move_tokens<tokens_in_flight, 1>(lane, lanes, slot + t * token_words, src + t * token_words, token_words, count);
  Word* const to = slot + t * token_words;
  const Word* const from = src + t * token_words;
  switch (kept - t) {
    case 3:
      return move_tokens<3, 1>(lane, lanes, to, from, token_words, count);
    case 2:
      return move_tokens<2, 2>(lane, lanes, to, from, token_words, count);
    case 1:
      return move_tokens<1, 4>(lane, lanes, to, from, token_words, count);
    default:
      return;
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
    const std::uint32_t first_word = first * element / word_bytes;
    shift_columns(lane, lanes, reinterpret_cast<Word*>(slot) + first_word, std::uint64_t{token_bytes / word_bytes},
                  last * element / word_bytes - first_word, route.window - shift, shift);
  };
  if (alignment % sizeof(WidestWord) == 0) return shift_as(WidestWord{});
  if (alignment % 4 == 0) return shift_as(std::uint32_t{});
  if (alignment % 2 == 0) return shift_as(std::uint16_t{});
  shift_as(std::uint8_t{});
}

/// The low `bytes` bytes of a word: none below 0, all from 8 on.
KOKKOS_INLINE_FUNCTION std::uint64_t low_bytes(std::int32_t bytes) {
  if (bytes <= 0) return 0;
  return ~std::uint64_t{0} >> (bytes < 8 ? 64 - 8 * bytes : 0);
}

/// The bytes of a word that a shift writes. `place`: of the word's first byte in its row.
KOKKOS_INLINE_FUNCTION std::uint64_t written_bytes(std::uint32_t place, std::uint32_t row_bytes,
                                                   std::uint32_t kept_bytes) {
  const auto row = static_cast<std::int32_t>(row_bytes);
  const auto kept = static_cast<std::int32_t>(kept_bytes);
  std::uint64_t written = 0;
  for (std::int32_t begin = -static_cast<std::int32_t>(place); begin < 8; begin += row)
    written |= low_bytes(begin + kept) & ~low_bytes(begin);
  return written;
}

/// The rows of a range of channels of a ds tensor, one behind the other: bytes [shift, row) of each source row → bytes
/// [0, row - shift) of the destination row.
struct ShiftedRows {
  std::byte* dst;
  const std::byte* src;  ///< dst, or memory that does not overlap it
  std::uint32_t bytes;   ///< of all rows
  std::uint32_t row_bytes;
  std::uint32_t shift_bytes;
};

/// Rows of any length as words of 8 bytes: dst, src and bytes are multiples of 8. A word is put together from two
/// neighbouring words of the source and from its old content; neighbouring lanes have neighbouring words. A lane reads
/// for several of its words before sync(), which all lanes pass, and writes them after it: in place, other lanes need
/// the old content of a word.
template <class Sync>
KOKKOS_INLINE_FUNCTION void shift_rows_by_words(std::uint32_t lane, std::uint32_t lanes, const ShiftedRows& rows,
                                                const Sync& sync) {
  using Word = std::uint64_t;
  constexpr std::uint32_t word_bytes = sizeof(Word);
  constexpr std::uint32_t words_in_flight = 2;
  auto* const to = reinterpret_cast<Word*>(rows.dst);
  const auto* const from = reinterpret_cast<const Word*>(rows.src);
  const std::uint32_t words = rows.bytes / word_bytes;
  const std::uint32_t ahead = rows.shift_bytes / word_bytes;
  const std::uint32_t right = rows.shift_bytes % word_bytes * 8;
  const std::uint32_t kept_bytes = rows.row_bytes - rows.shift_bytes;
  const std::uint32_t place_step = lanes * word_bytes % rows.row_bytes;
  std::uint32_t place = lane * word_bytes % rows.row_bytes;
  for (std::uint32_t begin = 0; begin < words; begin += words_in_flight * lanes) {
    const std::uint32_t first = begin + lane;
    Word low[words_in_flight] = {};
    Word high[words_in_flight] = {};
    Word held[words_in_flight] = {};
    if (first < words) {
      // Words past the end are not written, and no row needs the words behind the rows: others are read there.
      const auto within = [&](std::uint32_t w) { return w < words ? w : words - 1; };
      STATEPORT_UNROLL
      for (std::uint32_t k = 0; k < words_in_flight; ++k) {
        const std::uint32_t w = first + k * lanes < words ? first + k * lanes : first;
        low[k] = from[within(w + ahead)];
        high[k] = from[within(w + ahead + 1)];
        held[k] = to[w];
      }
    }
    if (rows.src == rows.dst) sync();
    STATEPORT_UNROLL
    for (std::uint32_t k = 0; k < words_in_flight; ++k) {
      const std::uint32_t w = first + k * lanes;
      const Word written = written_bytes(place, rows.row_bytes, kept_bytes);
      const Word moved = low[k] >> right | high[k] << (63 - right) << 1;
      if (w < words) to[w] = (moved & written) | (held[k] & ~written);
      place += place_step;
      if (place >= rows.row_bytes) place -= rows.row_bytes;
    }
  }
}

/// The same for any alignment: one lane owns a row, which it moves element by element.
template <class Element>
KOKKOS_INLINE_FUNCTION void shift_rows_by_elements(std::uint32_t lane, std::uint32_t lanes, const ShiftedRows& rows) {
  for (std::uint32_t row = lane * rows.row_bytes; row < rows.bytes; row += lanes * rows.row_bytes)
    for (std::uint32_t at = row; at + rows.shift_bytes < row + rows.row_bytes; at += sizeof(Element))
      *reinterpret_cast<Element*>(rows.dst + at) = *reinterpret_cast<const Element*>(rows.src + at + rows.shift_bytes);
}

/// The channel at which a range of a ds tensor's elements begins or ends. Ranges that meet at `element` round it alike;
/// the rows of a group of channels are whole words.
KOKKOS_INLINE_FUNCTION std::uint32_t channel_bound(const TensorRoute& route, std::uint32_t element) {
  constexpr std::uint32_t group_channels = 8;
  if (element == route.window * route.dim) return route.dim;
  return element / route.window / group_channels * group_channels;
}

/// The rows of elements [first, first + count) of a ds tensor.
template <class Sync>
KOKKOS_INLINE_FUNCTION void shift_ds(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route, std::byte* dst,
                                     const std::byte* src, std::uint32_t shift, std::uint32_t first,
                                     std::uint32_t count, const Sync& sync) {
  const auto element = static_cast<std::uint32_t>(route.element_bytes);
  const std::uint32_t row_bytes = route.window * element;
  const std::uint32_t begin = channel_bound(route, first);
  const std::uint64_t offset = std::uint64_t{begin} * row_bytes;
  const ShiftedRows rows{.dst = dst + offset,
                         .src = src + offset,
                         .bytes = (channel_bound(route, first + count) - begin) * row_bytes,
                         .row_bytes = row_bytes,
                         .shift_bytes = shift * element};
  const std::uint64_t alignment =
      reinterpret_cast<std::uintptr_t>(rows.dst) | reinterpret_cast<std::uintptr_t>(rows.src) | rows.bytes;
  if (alignment % 8 == 0) return shift_rows_by_words(lane, lanes, rows, sync);
  const std::uint64_t element_alignment = alignment | element;
  if (element_alignment % 4 == 0) return shift_rows_by_elements<std::uint32_t>(lane, lanes, rows);
  if (element_alignment % 2 == 0) return shift_rows_by_elements<std::uint16_t>(lane, lanes, rows);
  shift_rows_by_elements<std::uint8_t>(lane, lanes, rows);
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
/// contiguous range between two slots; `sync()`: no lane leaves before all have come and read. 0 < shift; a shift of
/// the whole window or more moves nothing. `elementwise`: the route may be in another mode than bytes. Conv tensors
/// have fewer than 2^32 bytes.
template <bool elementwise, class WidestWord, class CopyBytes, class Sync>
KOKKOS_INLINE_FUNCTION void copy_shifted_conv(std::uint32_t lane, std::uint32_t lanes, const TensorRoute& route,
                                              std::byte* dst, const std::byte* src, std::int32_t shift,
                                              std::uint64_t first_element, std::uint32_t count, const CopyBytes& copy,
                                              const Sync& sync) {
  const std::uint32_t window = route.window;
  const auto tokens = static_cast<std::uint32_t>(shift);
  if (tokens >= window) return;
  const auto first = static_cast<std::uint32_t>(first_element);
  if constexpr (elementwise)
    if (route.mode != TensorRoute::Mode::bytes)
      return shift_elements(lane, lanes, route, dst, src, tokens, first / window, (first + count) / window);
  if (route.token_inner) return shift_ds(lane, lanes, route, dst, src, tokens, first, count, sync);
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
