// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport::detail {

/// A prefill chunk that a scheduler would like to run, in tokens.
struct ChunkRequest {
  std::int64_t start = 0;    ///< tokens already computed
  std::int64_t tokens = 0;   ///< tokens that the budget allows
  std::int64_t prompt = 0;   ///< tokens of the prompt
  std::int64_t total = 0;    ///< tokens of prompt and output so far
  bool drops_block = false;  ///< the draft model cannot use the last block of a hit (eagle)
  std::int64_t tail = 1;     ///< tokens at the end that the last boundary to stop at leaves out
};

/// How many of the tokens to run so that every block boundary that gets published is a chunk end. All but the last of
/// the known tokens are prefill, also those that a request sampled before it was resumed. Every end before the end of
/// the prefill lies on the grid of blocks, and a start off the grid never passes its own next boundary. The last
/// boundary that the same tokens can hit is an end: their last token is computed anyway, so it lies before that one, or
/// before a longer tail.
/// 0: the request waits for a larger budget. A decode step is passed through. Precondition: block > 0, tokens >= 0.
/// O(1). The rule of vLLM 0.33.
[[nodiscard]] constexpr std::int64_t split_chunk(const ChunkRequest& chunk, std::int64_t block) noexcept {
  const std::int64_t prefill_end = chunk.prompt > chunk.total - 1 ? chunk.prompt : chunk.total - 1;
  if (chunk.start >= prefill_end) return chunk.tokens;
  const std::int64_t last_usable =
      chunk.drops_block ? floor_to(chunk.total, block) - block : floor_to(chunk.total - chunk.tail, block);
  std::int64_t end = chunk.start + chunk.tokens;
  if (end < prefill_end) end = floor_to(end, block);
  const auto stop_at = [&](std::int64_t boundary) {
    if (chunk.start < boundary && boundary < end) end = boundary;
  };
  stop_at(last_usable);
  if (floor_to(chunk.start, block) != chunk.start) stop_at(floor_to(chunk.start, block) + block);
  return end > chunk.start ? end - chunk.start : 0;
}

/// The smallest number of tokens for which split_chunk() answers more than 0. `tokens` of the request is not read.
/// Precondition: block > 0. O(1).
[[nodiscard]] constexpr std::int64_t least_chunk(const ChunkRequest& chunk, std::int64_t block) noexcept {
  const std::int64_t prefill_end = chunk.prompt > chunk.total - 1 ? chunk.prompt : chunk.total - 1;
  if (chunk.start >= prefill_end) return 1;
  const std::int64_t boundary = floor_to(chunk.start, block) + block;
  return (boundary < prefill_end ? boundary : prefill_end) - chunk.start;
}

}  // namespace stateport::detail
