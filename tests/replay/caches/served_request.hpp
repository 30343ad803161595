// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/cache.hpp"
#include "workload/sequence.hpp"

#include <cstdint>
#include <vector>

namespace stateport::replay::test {

inline constexpr std::int64_t block_size = 4;

using Blocks = std::vector<BlockIdentity>;

/// One request from begin to end.
inline Hit serve(ReplayCache& cache, const Blocks& blocks, std::int64_t extra_tokens) {
  const Request request{.input_tokens = std::ssize(blocks) * block_size + extra_tokens};
  const std::int64_t seen = tokens_seen(std::ssize(blocks), request.input_tokens, block_size);
  static_cast<void>(cache.prepare(request, Sequence(tokens_per_block, seen, blocks, 0)));
  const Hit hit = cache.begin();
  if (!cache.plan().rows.empty()) static_cast<void>(cache.commit());
  cache.finish();
  return hit;
}

}  // namespace stateport::replay::test
