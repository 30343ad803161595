// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/stats/cache_stats.hpp>
#include <stateport/core/stats/lost_hit.hpp>

#include "workload/workload.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

/// What a request found. Depths count blocks from the beginning of the prompt.
struct Hit {
  std::int32_t matched_blocks = 0;  ///< j: longest prefix whose KV is resident
  std::int32_t hit_blocks = 0;      ///< p <= j: where the request continues, with state@p; 0: from nothing
  SlotId slot;                      ///< holds state@p; invalid when p == 0
  std::optional<LostHit> lost;      ///< why p is less than j allows
};

/// A slot that takes the state after `depth_blocks` blocks.
struct Checkpoint {
  std::int32_t depth_blocks = 0;
  SlotId slot;
};

struct CacheCounts {
  std::int64_t state_evictions = 0;      ///< checkpoints that lost their slot, alone or with their block
  std::int64_t block_evictions = 0;      ///< KV blocks given up
  std::int64_t dropped_checkpoints = 0;  ///< asked for, but no slot could be freed
  std::int64_t uncached_blocks = 0;      ///< of prompts longer than the whole block pool
  std::int64_t resident_blocks = 0;
  std::int64_t resident_states = 0;
  std::int64_t victims = 0;         ///< under a budget: how often something was chosen to go
  std::int64_t metadata_bytes = 0;  ///< under a budget: of the tree's shape and its policy; 0: not counted
};

/// The index under test: one request at a time goes through prepare, begin, place and finish. A new index is one more
/// implementation and a line in make_cache.
class ReplayCache {
 public:
  virtual ~ReplayCache() = default;

  /// Time of the request that comes next, for indexes that decide by it. Never goes back.
  virtual void set_clock(double /*now_s*/) {}
  /// What is known of its future; for indexes that decide by it.
  virtual void set_hint(const ReuseHint& /*hint*/) {}
  /// Turns a prompt into the index's own keys (hashes). Timed apart from the three calls that follow.
  virtual void prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) = 0;
  /// Matches the prompt, pins what it found, and makes room for the KV of the rest.
  [[nodiscard]] virtual Hit begin() = 0;
  /// Finds slots for states at `depths` (ascending, in (p, n]; the forward makes them); fills `kept` with the
  /// checkpoints that got one, ascending. Nobody can match them before finish().
  virtual void place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) = 0;
  /// The placed states are written: makes KV and states visible and unpins the prompt.
  virtual void finish() = 0;

  [[nodiscard]] virtual CacheCounts counts() const = 0;
  /// How long evicted states had not been used; empty for an index that has no clock.
  [[nodiscard]] virtual AgeHistogram eviction_ages() const { return {}; }
  /// Throws std::logic_error naming the first broken invariant.
  virtual void check_invariants() const = 0;
};

}  // namespace stateport::replay
