// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/cache_stats.hpp>

#include "caches/cache.hpp"
#include "containers/flat_map.hpp"
#include "workload/content.hpp"

#include <cstdint>
#include <span>

namespace stateport::replay {

/// Every prefix that was ever served and every state that was ever stored: tells which hits a cache that never evicts
/// would have had, and so why a real one lost them.
class PrefixHistory {
 public:
  /// Counts a request of `input_tokens`, of which a prefix of each of 1 … n blocks is named in `prefixes`:
  ///
  ///     hit | state evicted, or the index's reason | no checkpoint | KV evicted | too few tokens left | never stored
  ///         p                                                      j            usable              seen end
  void count(std::span<const Content> prefixes, std::int64_t input_tokens, std::int64_t block_size_tokens,
             const Hit& hit, double now_s, CacheStats& stats);
  /// The request is served: all its prefixes were seen, and states were stored at `depths`, in blocks.
  void add(std::span<const Content> prefixes, std::span<const std::int32_t> depths, double now_s);

 private:
  struct Seen {
    double state_used_s = 0;  ///< when a state was stored or used here
    bool had_state = false;
  };
  FlatMap<Content, Seen> seen_;
};

}  // namespace stateport::replay
