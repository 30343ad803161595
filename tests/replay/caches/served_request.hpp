// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/cache.hpp"
#include "caches/checkpoint_mode.hpp"

#include <cstdint>
#include <vector>

namespace stateport::replay::test {

inline constexpr std::int64_t block_size = 4;

using Blocks = std::vector<BlockIdentity>;

/// One request from begin to end.
inline Hit serve(ReplayCache& cache, CheckpointMode mode, const Blocks& blocks, std::int64_t extra_tokens,
                 std::vector<Checkpoint>* placed = nullptr) {
  cache.prepare(blocks, static_cast<std::int64_t>(blocks.size()) * block_size + extra_tokens);
  const Hit hit = cache.begin();
  std::vector<std::int32_t> depths;
  std::vector<Checkpoint> kept;
  choose_depths(mode, hit.hit_blocks, hit.matched_blocks, static_cast<std::int32_t>(blocks.size()), depths);
  cache.place(depths, kept);
  cache.finish();
  if (placed) *placed = kept;
  return hit;
}

}  // namespace stateport::replay::test
