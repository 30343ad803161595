// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_lock.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "caches/cache.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

struct TreeCacheOptions {
  std::int32_t blocks = 0;  ///< KV blocks that can be cached
  std::int32_t slots = 0;
  std::int64_t block_size_tokens = 512;
  std::uint64_t layout_fingerprint = 0;  ///< of the states' spec
  EvictionOrder eviction = PrefixTree::Options{}.eviction;
  std::size_t positions = EvictionOptions{}.positions;  ///< hix: see EvictionOptions, like the next one
  std::int32_t samples = EvictionOptions{}.samples;
  std::int64_t state_bytes = 4096;  ///< for orders that weigh them
  std::int64_t kv_bytes_per_token = 1;
  ComputeCost benefit;            ///< what a hit saves, for orders that weigh it
  std::int64_t budget_bytes = 0;  ///< > 0: what KV and states may take together after a request
  bool spares_request = true;     ///< under a budget: nothing of the request that was just served goes
};

/// The index by tokens: PrefixTree for KV and states, one page for each block. Leaves go when KV is needed, states when
/// slots are, by the tree's order; a leaf that loses its state goes whole.
class TreeCache final : public ReplayCache {
 public:
  /// Throws InvalidArgument: blocks < 1 or >= 2^30, slots < 1, block_size_tokens < 1.
  explicit TreeCache(const TreeCacheOptions& options);

  void set_clock(double now_s) override { tree_.set_time(now_s_ = now_s); }
  void set_hint(const ReuseHint& hint) override { hint_ = hint; }
  void prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) override;
  [[nodiscard]] Hit begin() override;
  void place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) override;
  void finish() override;

  [[nodiscard]] CacheCounts counts() const override;
  [[nodiscard]] AgeHistogram eviction_ages() const override { return eviction_ages_; }
  void check_invariants() const override;

 private:
  void pin(NodeId state_node);
  void take_blocks();
  void take_slots(std::vector<Checkpoint>& kept);
  void insert(std::int32_t depth_blocks, SlotId slot);
  void evict(EvictDemand demand);
  /// Under a budget: evicts what the request that was just served has put on top.
  void enforce_budget();
  [[nodiscard]] std::span<const Token> prefix(std::int32_t depth_blocks) const;

  TreeCacheOptions options_;
  PrefixTree tree_;
  std::vector<std::int32_t> free_blocks_;  ///< taken from the end
  Freed freed_;
  std::int64_t state_evictions_ = 0;
  std::int64_t block_evictions_ = 0;
  std::int64_t dropped_checkpoints_ = 0;
  std::int64_t uncached_blocks_ = 0;

  std::vector<double> used_s_;  ///< by slot: when its state was made or used
  AgeHistogram eviction_ages_;

  // The request between prepare and finish.
  double now_s_ = 0;
  ReuseHint hint_;
  PromptPast past_;
  std::int64_t input_tokens_ = 0;
  std::vector<Token> tokens_;  ///< identities as the tree reads them
  std::vector<KvIndex> kv_;    ///< as long as the cached part of the prompt; of the matched part never read
  std::int32_t matched_ = 0;   ///< blocks
  std::int32_t cached_ = 0;    ///< blocks, matched ones first
  std::int32_t in_tree_ = 0;   ///< blocks of the prompt whose KV the tree owns; grows to cached_ in finish()
  PrefixLock path_lock_;       ///< all KV that was matched
  PrefixLock state_lock_;      ///< the state that the request continues from
  std::vector<Checkpoint> checkpoints_;
  std::vector<SlotId> taken_slots_;
};

}  // namespace stateport::replay
