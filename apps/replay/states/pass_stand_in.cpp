// SPDX-License-Identifier: Apache-2.0
#include "states/pass_stand_in.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include "states/word_pattern.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>

namespace stateport::replay {
namespace {

using Team = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
using Tile = PassStandIn::Tile;

KOKKOS_FUNCTION Word* words_in_store(const Tile& tile, std::int32_t slot) {
  return reinterpret_cast<Word*>(tile.base + slot * tile.stride_bytes) + tile.first_word;
}
KOKKOS_FUNCTION Word* words_of(const Tile& tile, std::int32_t slot, bool in_scratch) {
  if (!in_scratch) return words_in_store(tile, slot);
  return reinterpret_cast<Word*>(tile.scratch + slot * tile.scratch_stride_bytes) + tile.first_word;
}

KOKKOS_FUNCTION Pattern pattern(Content content, const Tile& tile) {
  return {content, tile.tensor, tile.random_bits, tile.fixed_bits};
}

struct Forward {
  const Tile* tiles;
  const StateWrite* writes;
  const std::int32_t* outs;
  const Content* window;
  std::uint32_t tile_count;
  std::int32_t history;

  /// Token t of the window is token t - history + 1 after the state that is written. A token that was there before lies
  /// farther back in the old window, which may be the same memory: walked upwards, it is read before it is overwritten.
  KOKKOS_FUNCTION void write_conv(const Team& team, const Tile& tile, const StateWrite& write) const {
    const Word* const in = words_in_store(tile, write.conv_in < 0 ? 0 : write.conv_in);
    Word* const out = words_of(tile, write.conv_out, write.in_scratch);
    const Content* const prefixes = window + write.first_content;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.words), [&](std::uint32_t i) {
      for (std::int64_t t = 0; t < history + write.drafts; ++t) {
        const std::int64_t before = t + write.advanced;  // in the window of the state that is read
        const bool carried = write.conv_in >= 0 && before < history;
        out[t * tile.token_words + i] = carried ? in[(before + write.bias) * tile.token_words + i]
                                                : pattern(prefixes[t], tile).word(tile.first_word + i);
      }
    });
  }

  KOKKOS_FUNCTION void write_recurrent(const Team& team, const Tile& tile, const StateWrite& write) const {
    const Word* const in = words_in_store(tile, write.recurrent_in < 0 ? 0 : write.recurrent_in);
    const Content* const prefixes = window + write.first_content + (history - 1);
    const Pattern from = pattern(write.from, tile);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, tile.words), [&](std::uint32_t i) {
      // The state of the empty prefix is zero, wherever it is.
      const Word rest = write.recurrent_in >= 0 ? in[i] ^ from.word(tile.first_word + i) : Word{0, 0};
      for (std::int32_t j = 0; j <= write.drafts; ++j)
        words_of(tile, outs[write.first_out + static_cast<std::uint32_t>(j)], write.in_scratch)[i] =
            rest ^ pattern(prefixes[j], tile).word(tile.first_word + i);
    });
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const auto work = static_cast<std::uint32_t>(team.league_rank());
    const StateWrite write = writes[work / tile_count];
    const Tile tile = tiles[work % tile_count];
    if (tile.token_words > 0)
      write_conv(team, tile, write);
    else
      write_recurrent(team, tile, write);
  }
};

struct CountWrongWords {
  const Tile* tiles;
  const Content* window;
  std::int32_t history;
  std::int32_t conv;
  std::int32_t bias;
  std::int32_t recurrent;

  KOKKOS_FUNCTION void operator()(const Team& team, std::uint64_t& total) const {
    const Tile tile = tiles[team.league_rank()];
    const bool is_conv = tile.token_words > 0;
    std::uint64_t wrong = 0;
    for (std::int32_t t = is_conv ? 0 : history - 1; t < history; ++t) {
      const Pattern wanted = pattern(window[t], tile);
      const Word* const words = is_conv ? words_in_store(tile, conv) + (t + bias) * std::int64_t{tile.token_words}
                                        : words_in_store(tile, recurrent);
      std::uint64_t here = 0;
      Kokkos::parallel_reduce(
          Kokkos::TeamThreadRange(team, tile.words),
          [&](std::uint32_t i, std::uint64_t& sum) {
            sum += static_cast<std::uint64_t>(words[i] != wanted.word(tile.first_word + i));
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

/// The bits of 127 in eight bytes of elements, whose signs are random.
std::uint64_t magnitudes(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return 0x42fe000042fe0000U;
    case ElementType::bf16:
      return 0x42fe42fe42fe42feU;
    case ElementType::fp16:
      return 0x57f057f057f057f0U;
    default:
      require(false, "type", name(type), "has no exact numbers here");
      return 0;
  }
}

std::vector<Tile> cut_tiles(const StateStore& states, const StateStore* scratch, std::int64_t window,
                            PassStandIn::Numbers numbers) {
  constexpr std::uint32_t tile_words = 1024;  // 16 KiB
  std::vector<Tile> tiles;
  for (std::size_t t = 0; t < states.tensors().size(); ++t) {
    const StateTensorView& view = states.tensors()[t];
    const bool conv = view.spec.kind == StateKind::conv;
    require(!conv || (view.spec.is(ConvLayout::sd) && view.spec.window() == window), "conv window", view.spec.window(),
            "an sd layout with history + drafts tokens");
    const std::size_t bytes =
        conv ? view.spec.natural_bytes() / static_cast<std::size_t>(window) : view.spec.natural_bytes();
    require(bytes % sizeof(Word) == 0, "tensor bytes", bytes, "a multiple of 16");
    const auto words = static_cast<std::uint32_t>(bytes / sizeof(Word));
    const bool exact = !conv && numbers == PassStandIn::Numbers::exact;
    const bool wide = view.spec.type == ElementType::fp32;
    const std::uint64_t signs = wide ? 0x8000000080000000U : 0x8000800080008000U;
    for (std::uint32_t first = 0; first < words; first += tile_words)
      tiles.push_back({.base = view.base,
                       .scratch = scratch == nullptr ? nullptr : scratch->tensors()[t].base,
                       .stride_bytes = view.slot_stride_bytes,
                       .scratch_stride_bytes = scratch == nullptr ? 0 : scratch->tensors()[t].slot_stride_bytes,
                       .tensor = t + 1,
                       .first_word = first,
                       .words = std::min(tile_words, words - first),
                       .token_words = conv ? words : 0,
                       .random_bits = exact ? signs : ~std::uint64_t{0},
                       .fixed_bits = exact ? magnitudes(view.spec.type) : 0});
  }
  return tiles;
}

}  // namespace

PassStandIn::PassStandIn(MemoryResource& resource, const StateStore& states, const StateStore* scratch, Numbers numbers,
                         std::int32_t history, std::int32_t drafts, const Stream& stream)
    : resource_(resource), history_(history), drafts_(drafts) {
  require(history >= 1, "history", history, "at least 1");
  require(scratch == nullptr || scratch->fingerprint() == states.fingerprint(), "scratch",
          scratch == nullptr ? 0 : scratch->fingerprint(), "the spec of the store");
  const std::vector<Tile> tiles = cut_tiles(states, scratch, history + drafts, numbers);
  tile_count_ = static_cast<std::uint32_t>(tiles.size());
  tiles_ = Buffer(resource, tiles.size() * sizeof(Tile));
  copy_bytes(stream, tiles_.data(), tiles.data(), tiles.size() * sizeof(Tile));
  stream.synchronize();
}

/// A buffer that is too small is replaced: the stream is idle between two passes.
void PassStandIn::stage(const Stream& stream, Buffer& buffer, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (buffer.size_bytes() < bytes) buffer = Buffer(resource_, 2 * bytes);
  copy_bytes(stream, buffer.data(), data, bytes);
}

void PassStandIn::forward(const Stream& stream, const PassForward& pass) {
  stage(stream, saves_, pass.saves.data(), pass.saves.size_bytes());
  stage(stream, targets_, pass.targets.data(), pass.targets.size_bytes());
  stage(stream, outs_, pass.recurrent_out.data(), pass.recurrent_out.size_bytes());
  stage(stream, window_, pass.window.data(), pass.window.size_bytes());
  const auto launch = [&](const Buffer& writes, std::size_t count) {
    if (count == 0) return;
    Kokkos::parallel_for("stateport::replay::pass_forward", teams(stream, count * tile_count_),
                         Forward{tiles_.as<Tile>(), writes.as<StateWrite>(), outs_.as<std::int32_t>(),
                                 window_.as<Content>(), tile_count_, history_});
  };
  launch(saves_, pass.saves.size());
  launch(targets_, pass.targets.size());
  stream.synchronize();
}

std::uint64_t PassStandIn::count_wrong_words(const Stream& stream, std::int32_t conv, std::int32_t bias,
                                             std::int32_t recurrent, std::span<const Content> window) {
  require(window.size() == static_cast<std::size_t>(history_), "window", window.size(), "history names");
  stage(stream, window_, window.data(), window.size_bytes());
  std::uint64_t wrong = 0;
  Kokkos::parallel_reduce("stateport::replay::count_wrong_words", teams(stream, tile_count_),
                          CountWrongWords{tiles_.as<Tile>(), window_.as<Content>(), history_, conv, bias, recurrent},
                          wrong);
  return wrong;
}

}  // namespace stateport::replay
