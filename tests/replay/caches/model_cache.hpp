// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/cache.hpp"
#include "caches/checkpoint_depths.hpp"
#include "workload/workload.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace stateport::replay::test {

/// The meaning of a hit in a cache that never evicts, with whole prefixes as keys: slow and obvious.
class ModelCache {
 public:
  struct Found {
    std::int32_t matched_blocks;
    std::int32_t hit_blocks;
  };

  explicit ModelCache(CheckpointPlacement placement, std::int64_t block_size)
      : placement_(placement), block_size_(block_size) {}

  Found serve(std::span<const BlockIdentity> blocks, std::int64_t input_tokens) {
    const auto full = static_cast<std::int32_t>(blocks.size());
    const auto prefix = [&](std::int32_t depth) {
      return std::vector<BlockIdentity>(blocks.begin(), blocks.begin() + depth);
    };
    std::int32_t matched = 0;
    while (matched < full && kv_.contains(prefix(matched + 1))) ++matched;
    std::int32_t hit = std::min(matched, static_cast<std::int32_t>((input_tokens - 1) / block_size_));
    while (hit > 0 && !states_.contains(prefix(hit))) --hit;
    for (std::int32_t depth = 1; depth <= full; ++depth) kv_.insert(prefix(depth));
    std::vector<std::int32_t> depths;
    choose_depths(placement_, hit, matched, full, depths);
    for (const std::int32_t depth : depths) states_.insert(prefix(depth));
    return {matched, hit};
  }

 private:
  CheckpointPlacement placement_;
  std::int64_t block_size_;
  std::set<std::vector<BlockIdentity>> kv_;
  std::set<std::vector<BlockIdentity>> states_;
};

}  // namespace stateport::replay::test
