// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/hash/block_hash.hpp>

#include <cstdint>
#include <span>

namespace stateport {

/// A request whose states are stored, as an EvictionPolicy is told of it.
struct ServedPrompt {
  double now_s = 0;                   ///< the caller's clock in seconds; never goes back
  std::span<const BlockHash> hashes;  ///< of the full blocks of the prompt; those after the first one <= 0 do not count
  std::int32_t usable_blocks = 0;     ///< the forward needs a token: (tokens - 1) / block size
  std::int32_t matched_blocks = 0;    ///< whose KV was cached before: a state there is at a branch point
  std::int32_t hit_blocks = 0;        ///< the state that the request continued from; 0: none
  ReuseHint hint;
};

}  // namespace stateport
