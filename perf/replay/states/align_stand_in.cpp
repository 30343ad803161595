// SPDX-License-Identifier: Apache-2.0
#include "states/align_stand_in.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "states/word_pattern.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>

namespace stateport::replay {
namespace {

using Team = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
using Tile = AlignStandIn::Tile;
using Row = AlignStandIn::Row;
using Tables = AlignStandIn::Tables;

KOKKOS_FUNCTION Word* words_of(const Tile& tile, std::int32_t block) {
  return reinterpret_cast<Word*>(tile.base + block * tile.stride_bytes) + tile.first_word;
}

struct Forward {
  const Tile* tiles;
  const Row* rows;
  const Content* window;
  Tables tables;
  std::uint32_t tile_count;
  std::int32_t history;
  std::int32_t drafts;

  /// Token t of the window is token running - history + 1 + t of the sequence. A token that was there before lies
  /// farther back in the old window, which is the same memory: walked upwards, it is read before it is overwritten.
  KOKKOS_FUNCTION void write_conv(const Team& team, const Tile& tile, const Row& row, const Content* prefixes,
                                  std::int32_t block, std::int32_t bias) const {
    Word* const words = words_of(tile, block);
    const std::int64_t advanced = row.scheduled - row.drafts;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.words), [&](std::uint32_t i) {
      for (std::int64_t t = 0; t < history + row.drafts; ++t) {
        const std::int64_t before = t + advanced;  // in the window of the state that is read
        const bool carried = row.computed > 0 && before < history;
        words[t * tile.token_words + i] = carried ? words[(before + bias) * tile.token_words + i]
                                                  : Pattern(prefixes[t], tile.tensor).word(tile.first_word + i);
      }
    });
  }

  KOKKOS_FUNCTION void write_recurrent(const Team& team, const Tile& tile, const Row& row, const Content* prefixes,
                                       const std::int32_t* blocks, std::int32_t bias) const {
    const Word* const in = words_of(tile, blocks[bias]);
    const Pattern from(row.from, tile.tensor);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.words), [&](std::uint32_t i) {
      // The state of the empty prefix is zero, wherever it is.
      const Word rest = row.computed > 0 ? in[i] ^ from.word(tile.first_word + i) : Word{0, 0};
      for (std::int32_t j = 0; j <= row.drafts; ++j)
        words_of(tile, blocks[j])[i] = rest ^ Pattern(prefixes[history - 1 + j], tile.tensor).word(tile.first_word + i);
    });
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const auto work = static_cast<std::uint32_t>(team.league_rank());
    const std::uint32_t index = work / tile_count;
    const Row row = rows[index];
    const Tile tile = tiles[work % tile_count];
    const Content* const prefixes = window + static_cast<std::int64_t>(index) * (history + drafts);
    const std::int32_t* const blocks =
        tables.block_table + std::int64_t{index} * tables.columns + tables.column_of_request[row.request];
    const std::int32_t bias = accepted_bias(tables.accepted_of_request[row.request]);
    if (tile.token_words > 0)
      write_conv(team, tile, row, prefixes, blocks[0], bias);
    else
      write_recurrent(team, tile, row, prefixes, blocks, bias);
  }
};

struct CountWrongWords {
  const Tile* tiles;
  const Content* window;
  std::int32_t history;
  std::int32_t block;

  KOKKOS_FUNCTION void operator()(const Team& team, std::uint64_t& total) const {
    const Tile tile = tiles[team.league_rank()];
    const bool conv = tile.token_words > 0;
    std::uint64_t wrong = 0;
    for (std::int32_t t = conv ? 0 : history - 1; t < history; ++t) {
      const Pattern pattern(window[t], tile.tensor);
      const Word* const words = words_of(tile, block) + (conv ? t : 0) * std::int64_t{tile.token_words};
      std::uint64_t here = 0;
      Kokkos::parallel_reduce(
          Kokkos::TeamThreadRange(team, tile.words),
          [&](std::uint32_t i, std::uint64_t& sum) {
            sum += static_cast<std::uint64_t>(words[i] != pattern.word(tile.first_word + i));
          },
          here);
      wrong += here;
    }
    Kokkos::single(Kokkos::PerTeam(team), [&] { total += wrong; });
  }
};

Kokkos::TeamPolicy<ExecutionSpace> teams(const Stream& stream, std::size_t count) {
  return {execution_space(stream), static_cast<int>(count), Kokkos::AUTO};
}

std::vector<Tile> cut_tiles(const StateStore& states, std::int64_t window) {
  constexpr std::uint32_t tile_words = 1024;  // 16 KiB
  std::vector<Tile> tiles;
  for (const StateTensorView& view : states.tensors()) {
    const bool conv = view.spec.kind == StateKind::conv;
    require(!conv || (view.spec.is(ConvLayout::sd) && view.spec.window() == window), "conv window", view.spec.window(),
            "an sd layout with history + drafts tokens");
    const std::size_t bytes =
        conv ? view.spec.natural_bytes() / static_cast<std::size_t>(window) : view.spec.natural_bytes();
    require(bytes % sizeof(Word) == 0, "tensor bytes", bytes, "a multiple of 16");
    const auto words = static_cast<std::uint32_t>(bytes / sizeof(Word));
    for (std::uint32_t first = 0; first < words; first += tile_words)
      tiles.push_back({.base = view.base,
                       .stride_bytes = view.slot_stride_bytes,
                       .tensor = static_cast<std::uint64_t>(&view - states.tensors().data()) + 1,
                       .first_word = first,
                       .words = std::min(tile_words, words - first),
                       .token_words = conv ? words : 0});
  }
  return tiles;
}

}  // namespace

AlignStandIn::AlignStandIn(MemoryResource& resource, const StateStore& states, std::int32_t history,
                           std::int32_t drafts, std::int32_t rows_max, const Stream& stream)
    : history_(history), drafts_(drafts) {
  require(history >= 1, "history", history, "at least 1");
  const std::vector<Tile> tiles = cut_tiles(states, history + drafts);
  tile_count_ = static_cast<std::uint32_t>(tiles.size());
  const auto rows = static_cast<std::size_t>(rows_max);
  tiles_ = Buffer(resource, tiles.size() * sizeof(Tile));
  rows_ = Buffer(resource, rows * sizeof(Row));
  window_ = Buffer(resource, rows * static_cast<std::size_t>(history + drafts) * sizeof(Content));
  copy_bytes(stream, tiles_.data(), tiles.data(), tiles.size() * sizeof(Tile));
  stream.synchronize();
}

void AlignStandIn::forward(const Stream& stream, std::span<const Row> rows, std::span<const Content> window,
                           const Tables& tables) {
  require(rows.size() * sizeof(Row) <= rows_.size_bytes(), "rows", rows.size(), "at most rows_max");
  require(window.size() == rows.size() * static_cast<std::size_t>(history_ + drafts_), "window", window.size(),
          "history + drafts names for each row");
  if (rows.empty()) return;
  staged_rows_.assign(rows.begin(), rows.end());
  staged_window_.assign(window.begin(), window.end());
  copy_bytes(stream, rows_.data(), staged_rows_.data(), rows.size_bytes());
  copy_bytes(stream, window_.data(), staged_window_.data(), window.size_bytes());
  Kokkos::parallel_for(
      "stateport::replay::align_forward", teams(stream, rows.size() * tile_count_),
      Forward{tiles_.as<Tile>(), rows_.as<Row>(), window_.as<Content>(), tables, tile_count_, history_, drafts_});
}

std::uint64_t AlignStandIn::count_wrong_words(const Stream& stream, std::int32_t block,
                                              std::span<const Content> window) {
  require(window.size() == static_cast<std::size_t>(history_), "window", window.size(), "history names");
  staged_window_.assign(window.begin(), window.end());
  copy_bytes(stream, window_.data(), staged_window_.data(), window.size_bytes());
  std::uint64_t wrong = 0;
  Kokkos::parallel_reduce("stateport::replay::count_wrong_words", teams(stream, tile_count_),
                          CountWrongWords{tiles_.as<Tile>(), window_.as<Content>(), history_, block}, wrong);
  return wrong;
}

}  // namespace stateport::replay
