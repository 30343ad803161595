// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport {

/// A checkpoint in the middle of a prefill chunk: the scan kernel also stores state@position into a column that the
/// chunk passes over. Scheduler, allocator and kernel all ask prefill_checkpoint(), so they agree.
struct PrefillCheckpoint {
  std::int32_t column = no_column;  ///< where the state is stored; no_column: no checkpoint in this chunk
  std::int64_t offset = 0;          ///< tokens from the start of the chunk
  [[nodiscard]] constexpr bool valid() const noexcept { return column >= 0; }
  friend constexpr bool operator==(const PrefillCheckpoint&, const PrefillCheckpoint&) noexcept = default;
};

/// A prefill chunk and the position at which a checkpoint is wanted, in tokens.
struct PrefillCheckpointQuery {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t position = 0;     ///< of the wanted checkpoint
  std::int64_t hash_block = 1;   ///< tokens per hashed block
  std::int64_t state_block = 1;  ///< tokens per column
  std::int64_t alignment = 0;    ///< distance that the kernel can stop at, from the start; 0: it cannot stop at all
};

/// The deepest useful position of n tokens: on the hash grid and before the end (`inclusive`: or at it). If the draft
/// model drops a block, a hit of all n tokens loses its last hash block: the position is the one before that.
[[nodiscard]] constexpr std::int64_t prefill_checkpoint_position(std::int64_t tokens, std::int64_t hash_block,
                                                                 bool drops_block, bool inclusive = false) noexcept {
  const std::int64_t position =
      drops_block ? floor_to(tokens, hash_block) - hash_block : floor_to(inclusive ? tokens : tokens - 1, hash_block);
  return position > 0 ? position : 0;
}

/// Whether the chunk can store state@position, and where. The column is the one before the running column, provided
/// that the chunk passes over it. Precondition: start >= 0, hash_block > 0, state_block > 0,
/// alignment >= 0, and fewer than 2^31 columns up to `end`.
[[nodiscard]] constexpr PrefillCheckpoint prefill_checkpoint(const PrefillCheckpointQuery& chunk) noexcept {
  const std::int64_t column = ceil_div(chunk.end, chunk.state_block) - 2;
  const bool fits = chunk.alignment > 0 && floor_to(chunk.start, chunk.hash_block) == chunk.start &&
                    column > floor_div(chunk.start - 1, chunk.state_block) && chunk.position >= chunk.start &&
                    chunk.position - chunk.start >= chunk.hash_block && chunk.position < chunk.end &&
                    (chunk.position - chunk.start) % chunk.alignment == 0;
  if (!fits) return {};
  return {static_cast<std::int32_t>(column), chunk.position - chunk.start};
}

}  // namespace stateport
