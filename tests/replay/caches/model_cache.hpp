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

  /// The content of the last block of a prompt of whole blocks that a request leaves: a tree also keeps the state at the
  /// end of a request, and slots under a budget keep no KV without a state.
  enum class Last : std::uint8_t { kv, kv_and_state, nothing };

  ModelCache(CheckpointPlacement placement, std::int64_t block_size, Last last)
      : placement_(placement), block_size_(block_size), last_(last) {}

  Found serve(std::span<const BlockIdentity> blocks, std::int64_t input_tokens) {
    const auto full = static_cast<std::int32_t>(blocks.size());
    const auto prefix = [&](std::int32_t depth) {
      return std::vector<BlockIdentity>(blocks.begin(), blocks.begin() + depth);
    };
    std::int32_t matched = 0;
    while (matched < full && kv_.contains(prefix(matched + 1))) ++matched;
    const std::int32_t usable = std::min(full, static_cast<std::int32_t>((input_tokens - 1) / block_size_));
    std::int32_t hit = std::min(matched, usable);
    while (hit > 0 && !states_.contains(prefix(hit))) --hit;
    const bool all = last_ != Last::nothing || placement_ == CheckpointPlacement::every || usable == 0;
    for (std::int32_t depth = 1; depth <= (all ? full : usable); ++depth) kv_.insert(prefix(depth));
    std::vector<std::int32_t> depths;
    choose_depths(placement_, {.hit = hit, .matched = matched, .usable = usable, .full = full}, depths);
    for (const std::int32_t depth : depths) states_.insert(prefix(depth));
    if (last_ == Last::kv_and_state && input_tokens == full * block_size_) states_.insert(prefix(full));
    return {matched, hit};
  }

 private:
  CheckpointPlacement placement_;
  std::int64_t block_size_;
  Last last_;
  std::set<std::vector<BlockIdentity>> kv_;
  std::set<std::vector<BlockIdentity>> states_;
};

}  // namespace stateport::replay::test
