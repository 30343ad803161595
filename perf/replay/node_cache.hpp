// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stateport/core/evict/budget_policy.hpp>
#include <stateport/core/evict/checkpoint_tree.hpp>
#include <stateport/core/pool/slot_pool.hpp>

#include "cache.hpp"
#include "prompt_blocks.hpp"

namespace stateport::replay {

/// A tree of blocks under one byte budget, whose victims a BudgetPolicy chooses: nothing is refused or dropped before
/// the request is finished.
class NodeCache final : public ReplayCache {
 public:
  /// `slots` states at most; the budget must be the tighter limit. Throws InvalidArgument as CheckpointTree, and for
  /// slots < 1.
  NodeCache(const Budget& budget, std::unique_ptr<BudgetPolicy> policy, std::int32_t slots,
            std::size_t reserve_nodes = 1024);

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
  using Block = PromptBlocks::Block;
  using Index = CheckpointNodes::Index;
  static constexpr Index none = CheckpointNodes::none;

  void walk();
  /// Says that the segment (begin, end] blocks of which `last` is the last one belong to a node.
  void set_node(Block last, std::int32_t blocks, Index node) noexcept;
  void know(Index node, std::int32_t end_depth);
  [[nodiscard]] LostHit why_lost(std::int32_t hit_blocks) const;
  void apply(const TreeChange& change);

  CheckpointTree tree_;
  SlotPool slots_;
  PromptBlocks prompt_;
  std::vector<Index> node_of_;             ///< by block; none: its KV is not cached
  std::vector<std::uint8_t> was_evicted_;  ///< by block: the state at its end, since it was last there
  std::vector<Block> last_block_;          ///< by node
  std::vector<SlotId> slot_of_;            ///< by node with a state
  std::vector<double> used_s_;             ///< by node: when its state was made or used
  std::vector<TreeChange> changes_;
  CacheCounts counts_;
  AgeHistogram eviction_ages_;

  // The request between prepare and finish.
  double now_s_ = 0;
  ReuseHint hint_;
  std::int64_t input_tokens_ = 0;
  std::int32_t usable_ = 0;
  std::int32_t matched_ = 0;
  std::vector<Index> path_;  ///< nodes that the prompt has whole
  Index cut_ = none;         ///< the one in which it leaves the tree
};

}  // namespace stateport::replay
