// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/evict/checkpoint_nodes.hpp>

#include <vector>

#include "containers/assert.hpp"
#include "containers/prefetch.hpp"
#include <stateport/core/model/error.hpp>

namespace stateport {

CheckpointNodes::CheckpointNodes(std::size_t reserve_nodes) {
  nodes_.reserve(reserve_nodes + 1);
  live_.reserve(reserve_nodes + 1);
  nodes_.push_back({.place = 0});
  live_.push_back(root);
}

void CheckpointNodes::fetch(Index node) const noexcept {
  detail::prefetch(&nodes_[node]);
}

CheckpointNodes::Index CheckpointNodes::take() {
  Index node = free_head_;
  if (node == none) {
    node = static_cast<Index>(nodes_.size());
    nodes_.emplace_back();
  } else {
    free_head_ = nodes_[node].parent;
    nodes_[node] = {};
  }
  nodes_[node].place = static_cast<std::uint32_t>(live_.size());
  live_.push_back(node);
  return node;
}

void CheckpointNodes::give_back(Index node) {
  Node& entry = nodes_[node];
  const Index last = live_.back();
  live_[entry.place] = last;
  nodes_[last].place = entry.place;
  live_.pop_back();
  entry.place = none;
  entry.parent = free_head_;
  free_head_ = node;
}

void CheckpointNodes::link(Index parent, Index child) noexcept {
  nodes_[child].parent = parent;
  nodes_[child].is_only_child = false;
  mark_only_child(parent, false);
  ++nodes_[parent].children;
  nodes_[parent].only_child ^= child;
  mark_only_child(parent, true);
}

void CheckpointNodes::unlink(Index parent, Index child) noexcept {
  mark_only_child(parent, false);
  --nodes_[parent].children;
  nodes_[parent].only_child ^= child;
  mark_only_child(parent, true);
}

void CheckpointNodes::mark_only_child(Index parent, bool is_only_child) noexcept {
  if (parent != root && nodes_[parent].children == 1) nodes_[nodes_[parent].only_child].is_only_child = is_only_child;
}

CheckpointNodes::Index CheckpointNodes::add(Index parent, std::int32_t end_blocks, bool has_state) {
  STATEPORT_ASSERT(contains(parent) && end_blocks > nodes_[parent].end_blocks);
  const Index node = take();
  nodes_[node].begin_blocks = nodes_[parent].end_blocks;
  nodes_[node].end_blocks = end_blocks;
  nodes_[node].has_state = has_state;
  link(parent, node);
  blocks_ += nodes_[node].blocks();
  states_ += has_state;
  return node;
}

CheckpointNodes::Index CheckpointNodes::split(Index node, std::int32_t at_blocks) {
  STATEPORT_ASSERT(contains(node) && at_blocks > nodes_[node].begin_blocks && at_blocks < nodes_[node].end_blocks);
  const Index upper = take();
  const Index parent = nodes_[node].parent;
  nodes_[upper].begin_blocks = nodes_[node].begin_blocks;
  nodes_[upper].end_blocks = at_blocks;
  nodes_[node].begin_blocks = at_blocks;
  unlink(parent, node);
  link(parent, upper);
  link(upper, node);
  return upper;
}

void CheckpointNodes::set_state(Index node, bool has_state) {
  STATEPORT_ASSERT(contains(node) && node != root);
  states_ += int{has_state} - int{nodes_[node].has_state};
  nodes_[node].has_state = has_state;
}

CheckpointNodes::Index CheckpointNodes::merge(Index node) {
  STATEPORT_ASSERT(contains(node) && node != root && nodes_[node].children == 1 && !nodes_[node].has_state);
  const Index child = nodes_[node].only_child;
  const Index parent = nodes_[node].parent;
  nodes_[child].begin_blocks = nodes_[node].begin_blocks;
  unlink(parent, node);
  link(parent, child);
  give_back(node);
  return child;
}

void CheckpointNodes::remove(Index node) {
  STATEPORT_ASSERT(contains(node) && node != root && nodes_[node].is_leaf());
  blocks_ -= nodes_[node].blocks();
  states_ -= nodes_[node].has_state;
  unlink(nodes_[node].parent, node);
  give_back(node);
}

std::size_t CheckpointNodes::bytes() const noexcept {
  return nodes_.capacity() * sizeof(Node) + live_.capacity() * sizeof(Index);
}

void CheckpointNodes::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "CheckpointNodes", what); };
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::vector<Index> only_child(nodes_.size(), 0);
  std::int64_t blocks = 0;
  std::int64_t states = 0;
  check(live_.front() == root && nodes_[root].end_blocks == 0 && !nodes_[root].has_state, "the root is not itself");
  for (std::size_t place = 0; place < live_.size(); ++place) {
    const Index index = live_[place];
    const Node& node = nodes_[index];
    check(node.place == place, "a node is not at its place");
    if (index == root) continue;
    check(contains(node.parent) && nodes_[node.parent].end_blocks == node.begin_blocks, "a node hangs nowhere");
    check(node.blocks() > 0, "a segment is empty");
    ++children[node.parent];
    only_child[node.parent] ^= index;
    blocks += node.blocks();
    states += node.has_state;
  }
  for (const Index index : live_) {
    const Node& node = nodes_[index];
    check(children[index] == node.children && only_child[index] == node.only_child, "children are counted wrong");
    const bool is_only_child = index != root && node.parent != root && children[node.parent] == 1;
    check(node.is_only_child == is_only_child, "an only child is not known as one");
  }
  check(blocks == blocks_ && states == states_, "blocks or states are counted wrong");
  std::size_t free = 0;
  for (Index index = free_head_; index != none; index = nodes_[index].parent) ++free;
  check(free + live_.size() == nodes_.size(), "a node got lost");
}

}  // namespace stateport
