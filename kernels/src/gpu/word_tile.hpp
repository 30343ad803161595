// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../byte_copy.hpp"
#include "../global_memory.hpp"
#include "../shifted_copy.hpp"
#include "launch_shape.hpp"
#include "tile_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// Tiles of CopyCode::words. Kernels without the code for others need fewer registers, so that a device runs more of
/// their teams at once.
namespace stateport::kernels {

/// Writes the words [first, words) of some rows, each `step` words from the next, whose old elements are in `stage`.
/// These words lie alike in their rows: which of their elements the shift moves is found once.
template <class Element>
KOKKOS_INLINE_FUNCTION void write_words_alike(std::uint32_t first, std::uint32_t step, std::uint32_t words,
                                              std::uint32_t* dst, const Element* stage, bool in_place,
                                              std::uint32_t window, std::uint32_t shift) {
  constexpr auto per_word = static_cast<std::uint32_t>(sizeof(std::uint32_t) / sizeof(Element));
  std::uint32_t from[per_word];  // of the word's elements, in the stage
  bool moves[per_word];
  bool all_move = true;
  std::uint32_t place = first * per_word % window;
  STATEPORT_UNROLL
  for (std::uint32_t e = 0; e < per_word; ++e) {
    moves[e] = place + shift < window;
    from[e] = first * per_word + e + (moves[e] ? shift : 0);
    all_move = all_move && moves[e];
    place = place + 1 == window ? 0 : place + 1;
  }
  STATEPORT_UNROLL_BY_FOUR
  for (std::uint32_t w = first; w < words; w += step) {
    std::uint32_t word = 0;
    STATEPORT_UNROLL
    for (std::uint32_t e = 0; e < per_word; ++e) {
      const Element element = stage[from[e]];
      if (!in_place && !all_move && moves[e]) reinterpret_cast<Element*>(dst + w)[e] = element;
      word |= std::uint32_t{element} << (8 * sizeof(Element) * e);
      from[e] += step * per_word;
    }
    if (in_place || all_move) dst[w] = word;
  }
}

/// Writes rows whose source rows are in `stage`. Neighbouring lanes write neighbouring words.
template <class Element>
KOKKOS_INLINE_FUNCTION void write_word_rows(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                            const std::byte* stage, bool in_place, std::uint32_t rows,
                                            std::uint32_t window, std::uint32_t shift) {
  constexpr auto per_word = static_cast<std::uint32_t>(sizeof(std::uint32_t) / sizeof(Element));
  const std::uint32_t period = per_word == 2 && window % 2 == 0 ? window / 2 : window;  // words that end with a row
  const std::uint32_t step = lanes < period ? period : lanes / period * period;
  for (std::uint32_t first = lane; first < step; first += lanes)
    write_words_alike(first, step, rows * window / per_word, reinterpret_cast<std::uint32_t*>(dst),
                      reinterpret_cast<const Element*>(stage), in_place, window, shift);
}

/// The rows of a tile of a ds tensor. `src`, `dst`: starts of the two slots.
template <std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void shift_word_rows(const Team& team, std::uint32_t lane, std::byte* stage, const Tile& tile,
                                            std::byte* dst, const std::byte* src, std::uint32_t shift) {
  const auto [begin, end] = channels_of(tile);
  const std::uint32_t row_bytes = tile.window * tile.element_bytes;
  const std::uint32_t stage_rows = stage_bytes / row_bytes / row_group * row_group;
  for (std::uint32_t row = begin; row < end; row += stage_rows) {
    const std::uint32_t rows = end - row < stage_rows ? end - row : stage_rows;
    const std::uint64_t offset = std::uint64_t{row} * row_bytes;
    if (row > begin) team.team_barrier();
    copy_words(lane, lanes, reinterpret_cast<Word16*>(stage), reinterpret_cast<const Word16*>(src + offset),
               rows * row_bytes / static_cast<std::uint32_t>(sizeof(Word16)));
    team.team_barrier();
    if (tile.element_bytes == 2)
      write_word_rows<std::uint16_t>(lane, lanes, dst + offset, stage, src == dst, rows, tile.window, shift);
    else
      write_word_rows<std::uint32_t>(lane, lanes, dst + offset, stage, src == dst, rows, tile.window, shift);
  }
}

/// The part of `row` that a tile holds. `stage`: memory of the team, nullptr without ds tensors.
template <std::uint32_t lanes>
KOKKOS_INLINE_FUNCTION void copy_word_tile(const Team& team, std::byte* stage, const Tile& tile, const SlotCopy& row) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  auto [src, dst, src_slot, shift] = copy_of(tile, row);
  std::uint32_t bytes = src_slot < 0 ? 0 : tile.bytes();
  if (shift != 0) {
    if (bytes == 0 || shift >= tile.window) return;
    const auto first = static_cast<std::uint32_t>(tile.first_element);
    const std::uint64_t first_bytes = std::uint64_t{first} * tile.element_bytes;
    if (tile.token_inner)
      return shift_word_rows<lanes>(team, lane, in_team_memory(stage), tile, dst - first_bytes, src - first_bytes,
                                    shift);
    constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word16));
    const std::uint32_t token_words = tile.dim * tile.element_bytes / word_bytes;
    if (src == dst) {
      const std::uint32_t begin = first / tile.window * tile.element_bytes / word_bytes;
      const std::uint32_t end = (first + tile.elements) / tile.window * tile.element_bytes / word_bytes;
      return shift_columns(lane, lanes, reinterpret_cast<Word16*>(dst - first_bytes) + begin, token_words, end - begin,
                           tile.window - shift, shift);
    }
    const ConvExtents extents{.window = tile.window, .dim = tile.dim, .element_bytes = tile.element_bytes};
    bytes = shifted_sd_elements(extents, shift, first, tile.elements) * tile.element_bytes;
    src += std::uint64_t{shift} * token_words * word_bytes;
  }
  if (src != dst)
    copy_words(lane, lanes, reinterpret_cast<Word16*>(dst), reinterpret_cast<const Word16*>(src),
               bytes / static_cast<std::uint32_t>(sizeof(Word16)));
}

}  // namespace stateport::kernels
