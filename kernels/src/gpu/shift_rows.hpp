// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../global_memory.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The shift of a conv state in ds order, whose rows are the tokens of one channel.
namespace stateport::kernels {

/// Rows that follow each other: elements [shift, window) of each source row → elements [0, window - shift) of the
/// destination row. Any alignment; 0 < shift < window.
struct ShiftedRows {
  std::byte* dst;
  const std::byte* src;  ///< dst, or memory that does not overlap it
  std::uint32_t rows;
  std::uint32_t window;  ///< elements of a row
  std::uint32_t shift;
  std::uint32_t element_bytes;
};

/// Copies bytes to memory that the lanes share: in words of 16 bytes where the source is aligned.
KOKKOS_INLINE_FUNCTION void stage_bytes_of(std::uint32_t lane, std::uint32_t lanes, std::byte* stage,
                                           const std::byte* src, std::uint32_t bytes) {
  constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word16));
  const std::uint32_t words = is_aligned(src, word_bytes) ? bytes / word_bytes : 0;
  copy_words(lane, lanes, reinterpret_cast<Word16*>(stage), reinterpret_cast<const Word16*>(src), words);
  for (std::uint32_t i = words * word_bytes + lane; i < bytes; i += lanes) stage[i] = src[i];
}

/// Writes whole words of a range in place, from its old elements in `stage`. Neighbouring lanes write neighbouring
/// words.
template <class Element, class Word>
KOKKOS_INLINE_FUNCTION void write_shifted_words(std::uint32_t lane, std::uint32_t lanes, Word* dst,
                                                const Element* stage, std::uint32_t words, std::uint32_t window,
                                                std::uint32_t shift) {
  constexpr auto per_word = static_cast<std::uint32_t>(sizeof(Word) / sizeof(Element));
  const std::uint32_t kept = window - shift;
  const std::uint32_t step = lanes * per_word % window;
  std::uint32_t first_place = lane * per_word % window;  // of the word's first element in its row
  STATEPORT_UNROLL_BY_FOUR
  for (std::uint32_t w = lane; w < words; w += lanes) {
    Word word = 0;
    std::uint32_t place = first_place;
    STATEPORT_UNROLL
    for (std::uint32_t e = 0; e < per_word; ++e) {
      const Word element = stage[w * per_word + e + (place < kept ? shift : 0)];
      word |= element << (8 * sizeof(Element) * e);
      place = place + 1 == window ? 0 : place + 1;
    }
    dst[w] = word;
    first_place += step;
    if (first_place >= window) first_place -= window;
  }
}

/// Writes elements [first, count) of a range, as far as the shift moves them.
template <class Element>
KOKKOS_INLINE_FUNCTION void write_shifted_elements(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                                   const Element* stage, std::uint32_t first, std::uint32_t count,
                                                   std::uint32_t window, std::uint32_t shift) {
  STATEPORT_NO_UNROLL
  for (std::uint32_t i = first + lane; i < count; i += lanes)
    if (i % window + shift < window)
      copy_element(dst + std::uint64_t{i} * sizeof(Element), reinterpret_cast<const std::byte*>(stage + i + shift),
                   sizeof(Element));
}

/// Writes `rows` whole rows from `dst` on, whose source rows are in `stage`.
template <class Element>
KOKKOS_INLINE_FUNCTION void write_shifted_rows(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                               const std::byte* stage, bool in_place, std::uint32_t rows,
                                               std::uint32_t window, std::uint32_t shift) {
  using Word = std::conditional_t<sizeof(Element) < 4, std::uint32_t, Element>;
  constexpr auto per_word = static_cast<std::uint32_t>(sizeof(Word) / sizeof(Element));
  const auto* const staged = reinterpret_cast<const Element*>(stage);
  const std::uint32_t elements = rows * window;
  const std::uint32_t words = in_place && is_aligned(dst, sizeof(Word)) ? elements / per_word : 0;
  write_shifted_words(lane, lanes, reinterpret_cast<Word*>(dst), staged, words, window, shift);
  write_shifted_elements(lane, lanes, dst, staged, words * per_word, elements, window, shift);
}

/// Rows of any length: a lane has a row for itself, and walks it upwards.
KOKKOS_INLINE_FUNCTION void shift_rows_alone(std::uint32_t lane, std::uint32_t lanes, const ShiftedRows& rows) {
  const std::uint64_t element = rows.element_bytes;
  for (std::uint32_t row = lane; row < rows.rows; row += lanes)
    for (std::uint32_t i = 0; i + rows.shift < rows.window; ++i) {
      const std::uint64_t at = (std::uint64_t{row} * rows.window + i) * element;
      copy_element(rows.dst + at, rows.src + at + rows.shift * element, element);
    }
}

/// Shifts by way of `stage`, [stage_bytes] of memory that the lanes share, aligned to 16 bytes: all rows that fit in
/// are read before any of them is written. `sync()`: no lane leaves before all have come.
template <class Sync>
KOKKOS_INLINE_FUNCTION void shift_rows(std::uint32_t lane, std::uint32_t lanes, const ShiftedRows& rows,
                                       std::byte* stage, std::uint32_t stage_bytes, const Sync& sync) {
  constexpr std::uint32_t aligned_rows = 16;  // so many rows of any length are whole words of 16 bytes
  const std::uint32_t row_bytes = rows.window * rows.element_bytes;
  std::uint32_t stage_rows = stage_bytes / row_bytes;
  if (stage_rows == 0) return shift_rows_alone(lane, lanes, rows);
  if (stage_rows > aligned_rows) stage_rows = stage_rows / aligned_rows * aligned_rows;
  const bool in_place = rows.src == rows.dst;
  for (std::uint32_t begin = 0; begin < rows.rows; begin += stage_rows) {
    const std::uint32_t left = rows.rows - begin;
    const std::uint32_t count = left < stage_rows ? left : stage_rows;
    std::byte* const dst = rows.dst + std::uint64_t{begin} * row_bytes;
    if (begin > 0) sync();
    stage_bytes_of(lane, lanes, stage, rows.src + std::uint64_t{begin} * row_bytes, count * row_bytes);
    sync();
    if (rows.element_bytes == 1)
      write_shifted_rows<std::uint8_t>(lane, lanes, dst, stage, in_place, count, rows.window, rows.shift);
    else if (rows.element_bytes == 2)
      write_shifted_rows<std::uint16_t>(lane, lanes, dst, stage, in_place, count, rows.window, rows.shift);
    else if (rows.element_bytes == 4)
      write_shifted_rows<std::uint32_t>(lane, lanes, dst, stage, in_place, count, rows.window, rows.shift);
    else
      write_shifted_rows<std::uint64_t>(lane, lanes, dst, stage, in_place, count, rows.window, rows.shift);
  }
}

}  // namespace stateport::kernels
