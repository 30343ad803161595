// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport {

/// A prefill chunk that a scheduler would like to run, in tokens.
struct ChunkRequest {
  std::int64_t start = 0;    ///< tokens already computed
  std::int64_t tokens = 0;   ///< tokens that the budget allows
  std::int64_t prompt = 0;   ///< tokens of the prompt
  std::int64_t total = 0;    ///< tokens of prompt and output so far
  bool drops_block = false;  ///< the draft model cannot use the last block of a hit (eagle)
};

/// How many of the tokens to run so that every block boundary that gets published is a chunk end: every end before the
/// prompt's lies on the grid of blocks, and a start off the grid never passes its own next boundary. 0: the request
/// waits for a larger budget. A decode step is passed through. Precondition: block > 0, tokens >= 0. O(1).
[[nodiscard]] constexpr std::int64_t split_chunk(const ChunkRequest& chunk, std::int64_t block) noexcept {
  const std::int64_t prefill_end = chunk.prompt > chunk.total - 1 ? chunk.prompt : chunk.total - 1;
  if (chunk.start >= prefill_end) return chunk.tokens;
  std::int64_t last_usable = floor_to(chunk.total, block);
  if (chunk.drops_block) last_usable = last_usable > block ? last_usable - block : 0;
  std::int64_t end = chunk.start + chunk.tokens;
  if (end < chunk.prompt) end = floor_to(end, block);
  const auto stop_at = [&](std::int64_t boundary) {
    if (chunk.start < boundary && boundary < end) end = boundary;
  };
  stop_at(last_usable);
  if (floor_to(chunk.start, block) != chunk.start) stop_at(floor_to(chunk.start, block) + block);
  return end > chunk.start ? end - chunk.start : 0;
}

}  // namespace stateport
