// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/evict/checkpoint_tree.hpp>

#include <utility>

#include <stateport/core/model/error.hpp>

namespace stateport {

CheckpointTree::CheckpointTree(const Budget& budget, std::unique_ptr<BudgetPolicy> policy, std::size_t reserve_nodes)
    : budget_(budget), nodes_(reserve_nodes), policy_(std::move(policy)) {
  check_budget(budget);
  require(policy_ != nullptr, "policy", 0, "must not be null");
}

CheckpointTree::Index CheckpointTree::split(Index node, std::int32_t at_blocks) {
  const Index upper = nodes_.split(node, at_blocks);
  policy_->split(nodes_, upper, node);
  return upper;
}

CheckpointTree::Index CheckpointTree::add_leaf(Index parent, std::int32_t end_blocks, bool has_state) {
  const Index leaf = nodes_.add(parent, end_blocks, has_state);
  if (has_state) policy_->stated(nodes_, leaf);
  return leaf;
}

void CheckpointTree::add_state(Index node) {
  nodes_.set_state(node, true);
  policy_->stated(nodes_, node);
}

void CheckpointTree::finish(Index end, std::vector<TreeChange>& changes) {
  policy_->served(nodes_, end);
  while (used_bytes() > budget_.bytes) {
    const auto victim = policy_->victim(nodes_);
    if (!victim) break;
    ++evictions_;
    if (nodes_[*victim].is_leaf())
      drop_leaf(*victim, changes);
    else
      drop_state(*victim, changes);
  }
  policy_->finished(nodes_);
}

void CheckpointTree::drop_leaf(Index node, std::vector<TreeChange>& changes) {
  for (;;) {
    const CheckpointNodes::Node leaf = nodes_[node];
    policy_->removed(nodes_, node);
    changes.push_back({.kind = TreeChange::Kind::leaf,
                       .node = node,
                       .begin_blocks = leaf.begin_blocks,
                       .end_blocks = leaf.end_blocks,
                       .had_state = leaf.has_state});
    nodes_.remove(node);
    const Index parent = leaf.parent;
    if (parent == CheckpointNodes::root || nodes_[parent].has_state) return;
    if (nodes_[parent].children == 1) return merge(parent, changes);
    if (!nodes_[parent].is_leaf()) return;
    node = parent;
  }
}

void CheckpointTree::drop_state(Index node, std::vector<TreeChange>& changes) {
  changes.push_back({.kind = TreeChange::Kind::state,
                     .node = node,
                     .begin_blocks = nodes_[node].begin_blocks,
                     .end_blocks = nodes_[node].end_blocks,
                     .had_state = true});
  nodes_.set_state(node, false);
  policy_->unstated(nodes_, node);
  if (nodes_[node].children == 1) merge(node, changes);
}

void CheckpointTree::merge(Index node, std::vector<TreeChange>& changes) {
  const CheckpointNodes::Node upper = nodes_[node];
  policy_->merged(nodes_, node, upper.only_child);
  nodes_.merge(node);
  changes.push_back({.kind = TreeChange::Kind::merged,
                     .node = node,
                     .into = upper.only_child,
                     .begin_blocks = upper.begin_blocks,
                     .end_blocks = upper.end_blocks});
}

void CheckpointTree::check_invariants() const {
  nodes_.check_invariants();
  for (const Index index : nodes_.live()) {
    const CheckpointNodes::Node& node = nodes_[index];
    require_invariant(index == CheckpointNodes::root || node.has_state || node.children >= 2, "CheckpointTree",
                      "a node has no state and is no fork");
  }
  policy_->check_invariants(nodes_);
}

}  // namespace stateport
