// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stateport/core/evict/budget_policy.hpp>
#include <stateport/core/evict/checkpoint_nodes.hpp>
#include <stateport/core/pool/budget.hpp>

namespace stateport {

/// Something that left a CheckpointTree, or moved in it. `node` names it as it was before the call.
struct TreeChange {
  enum class Kind : std::uint8_t {
    leaf,    ///< KV of the segment, and the state if `had_state`, are gone
    state,   ///< the state alone is gone
    merged,  ///< the segment is part of `into` now
  };
  Kind kind = Kind::leaf;
  CheckpointNodes::Index node = CheckpointNodes::none;
  CheckpointNodes::Index into = CheckpointNodes::none;
  std::int32_t begin_blocks = 0;
  std::int32_t end_blocks = 0;
  bool had_state = false;
};

/// Which prefixes and states one byte budget holds: the shape of a cache and the policy that bounds it. The owner
/// knows the tokens, the KV and the slots; it tells of each request and does what the changes say.
///
/// The budget may be exceeded between start() and finish() by what one request adds, and after it by the path of that
/// request if the policy spares it. Not thread-safe.
class CheckpointTree {
 public:
  using Index = CheckpointNodes::Index;

  /// Throws InvalidArgument for a budget that check_budget refuses or no policy.
  CheckpointTree(const Budget& budget, std::unique_ptr<BudgetPolicy> policy, std::size_t reserve_nodes = 1024);

  // One request, in this order (see BudgetPolicy). Node indices must be of nodes that exist.
  void start(const RequestFacts& request) { policy_->start(nodes_, request); }
  void matched(Index node) { policy_->matched(nodes_, node); }
  void hit(Index node) { policy_->hit(nodes_, node); }
  Index split(Index node, std::int32_t at_blocks);
  Index add_leaf(Index parent, std::int32_t end_blocks, bool has_state);
  void add_state(Index node);
  /// Gives up states, and KV with them, until the budget is kept or the policy has no victim. Appends what changed, in
  /// order. A leaf without a state goes too; a node without a state merges with its only child.
  void finish(Index end, std::vector<TreeChange>& changes);

  [[nodiscard]] const CheckpointNodes& nodes() const noexcept { return nodes_; }
  [[nodiscard]] const Budget& budget() const noexcept { return budget_; }
  [[nodiscard]] const BudgetPolicy& policy() const noexcept { return *policy_; }
  [[nodiscard]] std::int64_t used_bytes() const noexcept {
    return budget_.used_bytes(nodes_.blocks(), nodes_.states());
  }
  [[nodiscard]] std::int64_t evictions() const noexcept { return evictions_; }  ///< victims so far
  /// Of nodes and policy.
  [[nodiscard]] std::size_t bookkeeping_bytes() const noexcept { return nodes_.bytes() + policy_->bytes(); }
  /// Throws std::logic_error naming the first violation. O(n).
  void check_invariants() const;

 private:
  void drop_leaf(Index node, std::vector<TreeChange>& changes);
  void drop_state(Index node, std::vector<TreeChange>& changes);
  void merge(Index node, std::vector<TreeChange>& changes);

  Budget budget_;
  CheckpointNodes nodes_;
  std::unique_ptr<BudgetPolicy> policy_;
  std::int64_t evictions_ = 0;
};

}  // namespace stateport
