// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

struct ServedCacheOptions {
  CacheIndex index = CacheIndex::hash;
  std::int64_t blocks = 0;                  ///< KV blocks that can be cached
  std::int64_t slots = 0;                   ///< checkpoints
  std::int64_t block_size_tokens = 512;     ///< of the workload
  std::int64_t longest_blocks = INT32_MAX;  ///< no prompt has more
  CheckpointPlacement placement = CheckpointPlacement::branch;
  std::int64_t spare_blocks = 0;  ///< see SlotLayout::spare_checkpoint_tokens
  BlockHashKind hash = BlockHashKind::sha256;
  std::uint64_t layout_fingerprint = 0;  ///< of the states' spec; 0: unchecked
  EvictionOrder eviction = EvictionOrder::lru;
  EvictionOptions eviction_options;  ///< `benefit` is of real tokens
  MemoryCost memory;                 ///< the same
  bool separate_checkpoints = false;
  std::optional<Budget> budget;  ///< `blocks` and `slots` must be the looser limits
  bool tells_stored = true;      ///< costs events
};

/// The cache that a ServedCache serves from: blocks of tokens_per_block tokens, and bytes in as many parts of theirs.
/// Throws as ServedCache, but for make_request_cache.
[[nodiscard]] RequestCacheOptions request_cache_options(const ServedCacheOptions& options);

/// Content and counters of the tiers of such a cache, in bytes and tokens of the model. `block_size_tokens`: of the
/// workload.
[[nodiscard]] std::array<TierUsage, medium_count> tier_usages(RequestCache& cache, std::int64_t block_size_tokens);

/// Bytes on the device by tenant, of a cache that counts `scale` times as many; 0 where it knows no quotas.
[[nodiscard]] std::array<std::int64_t, tenant_count> tenant_bytes(RequestCache& cache, std::int64_t scale = 1);

/// The cache that an engine links, with one request at a time: RequestCache by block hash or by tokens.
class ServedCache final : public ReplayCache {
 public:
  /// Throws InvalidArgument: blocks, slots or block_size_tokens < 1, longest_blocks < 0, more blocks than a KV index
  /// can name; as check_budget, and for a budget for blocks of another size; as make_request_cache.
  explicit ServedCache(const ServedCacheOptions& options);

  [[nodiscard]] StateRoom room() const override;
  std::chrono::steady_clock::duration prepare(const Request& request, const Sequence& names) override;
  void set_mover(PassMover& mover) override { mover_ = &mover; }
  [[nodiscard]] Hit begin() override;
  [[nodiscard]] PassPlan plan() override;
  [[nodiscard]] PassCommit commit() override;
  void finish() override;
  [[nodiscard]] std::span<const std::int32_t> stored() const override { return stored_; }

  [[nodiscard]] CacheCounts counts() const override;
  [[nodiscard]] AgeHistogram eviction_ages() const override { return cache_->stats().eviction_ages; }
  void check_invariants() const override { cache_->check_invariants(); }

 private:
  void take_events();
  void move_between_tiers(TransferPlan transfers);
  [[nodiscard]] PassPlan plan_part(std::int64_t tokens);
  [[nodiscard]] PassCommit commit_part();
  void move_memory(MemoryPlan plan);

  std::unique_ptr<RequestCache> cache_;
  std::optional<BlockHasher> hasher_;  ///< of an index by block hash, to time it
  PromptHashes hashes_;
  std::int64_t dropped_checkpoints_ = 0;
  std::int64_t uncached_blocks_ = 0;
  std::int64_t mapped_bytes_ = 0;
  std::int64_t copied_kv_blocks_ = 0;
  std::vector<CacheEvent> events_;

  // The request between prepare and finish.
  Request wanted_;
  std::vector<Token> tokens_;
  RequestId request_;  ///< none: passed by
  std::int64_t reused_tokens_ = 0;
  PassId pass_ = 0;
  std::vector<std::int32_t> stored_;
  std::vector<TransferResult> moved_;
  NoPasses nothing_;
  PassMover* mover_ = &nothing_;
  std::int64_t block_size_tokens_;  ///< of the workload
};

}  // namespace stateport::replay
