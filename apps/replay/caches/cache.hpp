// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_types.hpp>
#include <stateport/core/stats/cache_stats.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include "states/pass_mover.hpp"
#include "workload/sequence.hpp"
#include "workload/workload.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

namespace stateport::replay {

/// For a cache under test a block of the workload is a page of `tokens_per_block` tokens, whose first two are its
/// identity. One token stands for the rest of a prompt behind its full blocks. So all decisions are those for the real
/// tokens, and cost little.
inline constexpr std::int32_t tokens_per_block = 4;

/// Tokens of a prompt, as a cache under test sees it.
[[nodiscard]] constexpr std::int64_t tokens_seen(std::int64_t blocks, std::int64_t input_tokens,
                                                 std::int64_t block_size_tokens) noexcept {
  return blocks * tokens_per_block + (input_tokens > blocks * block_size_tokens ? 1 : 0);
}

/// The cached prefix of a request. Depths count blocks from the beginning of the prompt.
struct Hit {
  std::int32_t matched_blocks = 0;  ///< j: longest prefix whose KV is resident
  std::int32_t hit_blocks = 0;      ///< p <= j: where the request continues, with state@p; 0: from nothing
  std::optional<LostHit> lost;      ///< why p is less than j allows
};

struct CacheCounts {
  std::int64_t state_evictions = 0;      ///< checkpoints that lost their slot, alone or with their block
  std::int64_t block_evictions = 0;      ///< KV blocks given up
  std::int64_t dropped_checkpoints = 0;  ///< asked for, but no slot could be freed
  std::int64_t uncached_blocks = 0;      ///< of prompts longer than the whole block pool
  std::int64_t resident_blocks = 0;
  std::int64_t resident_states = 0;
  std::int64_t awaited_tokens = 0;                           ///< as CacheStats counts them
  std::int64_t victims = 0;                                  ///< under a budget: how often something was chosen to go
  std::int64_t memory_moves = 0;                             ///< in an arena: extents that got memory or gave it back
  std::int64_t memory_mapped_bytes = 0;                      ///< of extents that got memory, since the first plan
  std::int64_t memory_copied_bytes = 0;                      ///< of KV that was copied out of extents
  std::array<std::int64_t, tenant_count> tenant_bytes = {};  ///< at the end, where tenants have quotas
  std::array<TierUsage, medium_count> tiers = {};            ///< by medium; bytes are of the model
  std::int64_t metadata_bytes = 0;  ///< under a budget: of the tree's shape and its policy; 0: not counted

  [[nodiscard]] std::int64_t host_hit_tokens() const noexcept { return of(Medium::host).hit_tokens; }
  [[nodiscard]] std::int64_t file_hit_tokens() const noexcept { return of(Medium::file).hit_tokens; }
  [[nodiscard]] const TierUsage& of(Medium medium) const noexcept { return tiers[static_cast<std::size_t>(medium)]; }
};

/// The cache under test: one request at a time goes through begin, plan, commit and finish. The whole prompt is one
/// pass.
class ReplayCache {
 public:
  virtual ~ReplayCache() = default;

  [[nodiscard]] virtual StateRoom room() const = 0;
  /// Sets the request that the next calls serve, with the names of its tokens_seen(). Returns the time that hashing
  /// them takes, which those calls contain, too; 0 for a cache that does not hash.
  virtual std::chrono::steady_clock::duration prepare(const Request& request, const Sequence& names) = 0;
  /// The mover carries out the transfers between tiers that the cache plans. It must outlive the replay.
  virtual void set_mover(PassMover& /*mover*/) {}
  /// Matches the prompt, and pins the prefix that it found.
  [[nodiscard]] virtual Hit begin() = 0;
  /// One row: from state@p to the end of the prompt. No row: the prompt is longer than the cache, which passes it by.
  [[nodiscard]] virtual PassPlan plan() = 0;
  /// The pass has run: KV and states can be found.
  [[nodiscard]] virtual PassCommit commit() = 0;
  virtual void finish() = 0;
  /// Depths of the states that the request stored, ascending, once it is finished. Empty for a cache that was not asked
  /// to tell.
  [[nodiscard]] virtual std::span<const std::int32_t> stored() const = 0;

  [[nodiscard]] virtual CacheCounts counts() const = 0;
  /// How long evicted states had not been used.
  [[nodiscard]] virtual AgeHistogram eviction_ages() const = 0;
  /// Throws std::logic_error naming the first broken invariant.
  virtual void check_invariants() const = 0;
};

}  // namespace stateport::replay
