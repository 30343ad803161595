// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/prefix_matcher.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

struct SlotsCacheOptions {
  std::int32_t blocks = 0;  ///< KV blocks that can be cached
  std::int32_t slots = 0;
  std::int64_t block_size_tokens = 512;
  BlockHashKind hash = BlockHashKind::sha256;
  std::uint64_t layout_fingerprint = 0;      ///< of the states' spec
  std::shared_ptr<EvictionPolicy> eviction;  ///< of states; none: least recently used
  /// What KV and states may take together after a request. `blocks` and `slots` must be the looser limits.
  std::optional<Budget> budget;
};

/// The index by block hash: BlockPool for the KV, SlotAllocator for the states. Least recently used goes first, unless
/// a policy chooses the states; states count as used when a request continues from them or makes them.
///
/// Under a budget the states are what is chosen from: KV goes as soon as no state needs it, since no request can
/// continue from it. Of the states that one request used or made the deepest counts as used first.
class SlotsCache final : public ReplayCache {
 public:
  /// Throws InvalidArgument: blocks < 1, slots < 1, block_size_tokens < 1; as check_budget; a budget for blocks of
  /// another size.
  explicit SlotsCache(const SlotsCacheOptions& options);

  void set_clock(double now_s) override { now_s_ = now_s; }
  void set_hint(const ReuseHint& hint) override { hint_ = hint; }
  void prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) override;
  [[nodiscard]] Hit begin() override;
  void place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) override;
  void finish() override;

  [[nodiscard]] CacheCounts counts() const override;
  [[nodiscard]] AgeHistogram eviction_ages() const override { return eviction_ages_; }
  void check_invariants() const override;

 private:
  /// Counts what goes with an evicted block. Must be told before the allocator is.
  class Losses final : public BlockListener {
   public:
    Losses(SlotsCache& cache, BlockPool& pool) : cache_(cache) { pool.add_listener(*this); }
    void on_blocks_unreferenced(std::span<const BlockId>) override {}
    void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;

    std::int64_t blocks = 0;
    std::int64_t states = 0;

   private:
    SlotsCache& cache_;
  };

  struct Recency {
    BlockId block;
    std::int64_t tick;
  };

  [[nodiscard]] std::size_t full_blocks() const noexcept { return hashes_.keys.size(); }
  [[nodiscard]] StateTag tag_at(std::int32_t depth_blocks) const;
  [[nodiscard]] bool holds_state(std::int32_t depth_blocks) const;
  void remember_recency(const BlockMatch& match);
  void take_blocks(std::size_t matched);
  void order_uses();
  void enforce_budget();
  void drop_useless(BlockId block);

  SlotsCacheOptions options_;
  BlockHasher hasher_;
  BlockPool pool_;
  Losses losses_;
  SlotPool slots_;
  SlotAllocator allocator_;
  PrefixMatcher matcher_;
  std::int64_t dropped_checkpoints_ = 0;
  std::int64_t uncached_blocks_ = 0;
  std::vector<double> used_s_;  ///< by slot: when its state was made or used
  AgeHistogram eviction_ages_;
  BlockId last_victim_;  ///< whose state was evicted last

  // The request between prepare and finish.
  double now_s_ = 0;
  ReuseHint hint_;
  std::int64_t input_tokens_ = 0;
  std::vector<std::int32_t> tokens_;  ///< identities as the hasher reads them
  PromptHashes hashes_;
  std::vector<BlockId> blocks_;  ///< of its prefix, matched ones first
  std::size_t matched_ = 0;
  std::int32_t hit_blocks_ = 0;
  std::vector<Recency> kept_recency_;
  std::vector<BlockHash> parents_;
  std::vector<BlockId> checkpoint_blocks_;
  std::vector<BlockHash> checkpoint_keys_;
  std::vector<StateTag> checkpoint_tags_;
  std::vector<SlotId> checkpoint_slots_;
};

}  // namespace stateport::replay
