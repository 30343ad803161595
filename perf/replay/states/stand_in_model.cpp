// SPDX-License-Identifier: Apache-2.0
#include "states/stand_in_model.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include "states/word_pattern.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>

namespace stateport::replay {
namespace {

using Team = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
using Tile = StandInModel::Tile;
using Row = StandInModel::Row;

KOKKOS_FUNCTION Word* words_of(std::byte* base, std::int64_t stride_bytes, std::int32_t slot, std::uint32_t first) {
  return reinterpret_cast<Word*>(base + slot * stride_bytes) + first;
}

/// out = in, with the pattern of `from` taken out and that of `to` put in. in == out is fine.
KOKKOS_FUNCTION void continue_tile(const Team& team, const Tile& tile, const Word* in, Word* out, Content from,
                                   Content to) {
  const Pattern old_pattern(from, tile.tensor);
  const Pattern new_pattern(to, tile.tensor);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.words), [&](std::uint32_t i) {
    const Word before = old_pattern.word(tile.first_word + i);
    const Word after = new_pattern.word(tile.first_word + i);
    out[i] = in[i] ^ before ^ after;
  });
}

struct MakeIntermediates {
  const Tile* tiles;
  const Row* rows;
  std::uint32_t tile_count;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const auto work = static_cast<std::uint32_t>(team.league_rank());
    const Row row = rows[work / tile_count];
    const Tile tile = tiles[work % tile_count];
    const Word* in = words_of(tile.live, tile.live_stride_bytes, row.live_slot, tile.first_word);
    Word* out = words_of(tile.scratch, tile.scratch_stride_bytes, row.scratch_slot, tile.first_word);
    continue_tile(team, tile, in, out, row.from, row.to);
  }
};

struct Advance {
  const Tile* tiles;
  std::int32_t live_slot;
  Content from;
  Content to;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const Tile tile = tiles[team.league_rank()];
    Word* words = words_of(tile.live, tile.live_stride_bytes, live_slot, tile.first_word);
    continue_tile(team, tile, words, words, from, to);
  }
};

struct CountWrongWords {
  const Tile* tiles;
  std::int32_t live_slot;
  Content content;

  KOKKOS_FUNCTION void operator()(const Team& team, std::uint64_t& total) const {
    const Tile tile = tiles[team.league_rank()];
    const Word* words = words_of(tile.live, tile.live_stride_bytes, live_slot, tile.first_word);
    const Pattern pattern(content, tile.tensor);
    std::uint64_t wrong = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, tile.words),
        [&](std::uint32_t i, std::uint64_t& sum) {
          const Word right = pattern.word(tile.first_word + i);
          sum += static_cast<std::uint64_t>(words[i] != right);
        },
        wrong);
    Kokkos::single(Kokkos::PerTeam(team), [&] { total += wrong; });
  }
};

Kokkos::TeamPolicy<ExecutionSpace> teams(const Stream& stream, std::size_t count) {
  return {execution_space(stream), static_cast<int>(count), Kokkos::AUTO};
}

std::vector<Tile> cut_tiles(const StateStore& live, const StateStore& scratch) {
  constexpr std::uint32_t tile_words = 1024;  // 16 KiB
  std::vector<Tile> tiles;
  for (std::size_t t = 0; t < live.tensors().size(); ++t) {
    const StateTensorView& view = live.tensors()[t];
    const StateTensorView& scratch_view = scratch.tensors()[t];
    require(view.spec.natural_bytes() % sizeof(Word) == 0, "tensor bytes", view.spec.natural_bytes(),
            "a multiple of 16");
    const auto words = static_cast<std::uint32_t>(view.spec.natural_bytes() / sizeof(Word));
    for (std::uint32_t first = 0; first < words; first += tile_words)
      tiles.push_back({view.base, scratch_view.base, view.slot_stride_bytes, scratch_view.slot_stride_bytes, t + 1,
                       first, std::min(tile_words, words - first)});
  }
  return tiles;
}

}  // namespace

StandInModel::StandInModel(MemoryResource& resource, const StateStore& live, const StateStore& scratch,
                           const Stream& stream) {
  require(live.fingerprint() == scratch.fingerprint(), "scratch", scratch.fingerprint(), "the spec of the live store");
  const std::vector<Tile> tiles = cut_tiles(live, scratch);
  tile_count_ = static_cast<std::uint32_t>(tiles.size());
  tiles_ = Buffer(resource, tiles.size() * sizeof(Tile));
  rows_ = Buffer(resource, rows_max * sizeof(Row));
  staged_rows_.reserve(rows_max);
  copy_bytes(stream, tiles_.data(), tiles.data(), tiles.size() * sizeof(Tile));
  stream.synchronize();
}

void StandInModel::make_intermediates(const Stream& stream, std::span<const Row> rows) {
  require(rows.size() <= rows_max, "rows", rows.size(), "at most rows_max");
  if (rows.empty()) return;
  staged_rows_.assign(rows.begin(), rows.end());
  copy_bytes(stream, rows_.data(), staged_rows_.data(), rows.size() * sizeof(Row));
  Kokkos::parallel_for("stateport::replay::make_intermediates", teams(stream, rows.size() * tile_count_),
                       MakeIntermediates{tiles_.as<Tile>(), rows_.as<Row>(), tile_count_});
}

void StandInModel::advance(const Stream& stream, std::int32_t live_slot, Content from, Content to) {
  Kokkos::parallel_for("stateport::replay::advance", teams(stream, tile_count_),
                       Advance{tiles_.as<Tile>(), live_slot, from, to});
}

std::uint64_t StandInModel::count_wrong_words(const Stream& stream, std::int32_t live_slot, Content content) const {
  std::uint64_t wrong = 0;
  Kokkos::parallel_reduce("stateport::replay::count_wrong_words", teams(stream, tile_count_),
                          CountWrongWords{tiles_.as<Tile>(), live_slot, content}, wrong);
  return wrong;
}

}  // namespace stateport::replay
