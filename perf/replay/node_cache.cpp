// SPDX-License-Identifier: Apache-2.0
#include "node_cache.hpp"

#include <algorithm>
#include <utility>

#include <stateport/core/model/error.hpp>

namespace stateport::replay {

NodeCache::NodeCache(const Budget& budget, std::unique_ptr<BudgetPolicy> policy, std::int32_t slots,
                     std::size_t reserve_nodes)
    : tree_(budget, std::move(policy), reserve_nodes), slots_(std::max(slots, 0)) {
  require(slots >= 1, "slots", slots, "at least 1");
}

void NodeCache::prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) {
  prompt_.read(identities);
  input_tokens_ = input_tokens;
  node_of_.resize(prompt_.count(), none);
  was_evicted_.resize(prompt_.count(), 0);
}

void NodeCache::walk() {
  const CheckpointNodes& nodes = tree_.nodes();
  path_.clear();
  cut_ = none;
  matched_ = 0;
  while (matched_ < prompt_.size()) {
    const Index node = node_of_[prompt_.at(matched_ + 1)];
    if (node == none) return;
    const std::int32_t end = std::min(nodes[node].end_blocks, prompt_.size());
    while (matched_ < end && node_of_[prompt_.at(matched_ + 1)] == node) ++matched_;
    if (matched_ < nodes[node].end_blocks) {
      cut_ = node;
      return;
    }
    path_.push_back(node);
  }
}

Hit NodeCache::begin() {
  const CheckpointNodes& nodes = tree_.nodes();
  walk();
  usable_ = static_cast<std::int32_t>((input_tokens_ - 1) / tree_.budget().block_size_tokens);
  tree_.start(
      {.now_s = now_s_, .keys = prompt_.keys(), .usable_blocks = usable_, .matched_blocks = matched_, .hint = hint_});
  Index deepest = none;
  for (const Index node : path_) {
    tree_.matched(node);
    if (nodes[node].has_state && nodes[node].end_blocks <= usable_) deepest = node;
  }
  if (cut_ != none) tree_.matched(cut_);
  Hit hit{.matched_blocks = matched_};
  if (deepest != none) {
    tree_.hit(deepest);
    used_s_[deepest] = now_s_;
    hit.hit_blocks = nodes[deepest].end_blocks;
    hit.slot = slot_of_[deepest];
  }
  if (hit.hit_blocks < matched_) hit.lost = why_lost(hit.hit_blocks);
  return hit;
}

LostHit NodeCache::why_lost(std::int32_t hit_blocks) const {
  if (matched_ > usable_ && cut_ == none && tree_.nodes()[path_.back()].has_state) return LostHit::too_few_tokens;
  for (std::int32_t depth = hit_blocks + 1; depth <= std::min(matched_, usable_); ++depth)
    if (was_evicted_[prompt_.at(depth)] != 0) return LostHit::evicted;
  return LostHit::no_checkpoint;
}

void NodeCache::set_node(Block last, std::int32_t blocks, Index node) noexcept {
  for (Block block = last; blocks > 0; --blocks, block = prompt_.parent(block)) node_of_[block] = node;
}

void NodeCache::know(Index node, std::int32_t end_depth) {
  if (node >= last_block_.size()) {
    last_block_.resize(node + 1);
    slot_of_.resize(node + 1);
    used_s_.resize(node + 1, 0);
  }
  last_block_[node] = prompt_.at(end_depth);
  set_node(last_block_[node], tree_.nodes()[node].blocks(), node);
}

void NodeCache::place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) {
  kept.clear();
  Index end = path_.empty() ? CheckpointNodes::root : path_.back();
  if (cut_ != none) {
    end = tree_.split(cut_, matched_);
    know(end, matched_);
  }
  for (const std::int32_t depth : depths) {
    if (depth < matched_ || (depth == matched_ && tree_.nodes()[end].has_state)) continue;
    if (depth > matched_) {
      end = tree_.add_leaf(end, depth, true);
      know(end, depth);
    } else {
      tree_.add_state(end);
    }
    const bool taken = slots_.allocate({&slot_of_[end], 1});
    require_invariant(taken, "NodeCache", "the budget holds more states than there are slots");
    was_evicted_[prompt_.at(depth)] = 0;
    used_s_[end] = now_s_;
    kept.push_back({.depth_blocks = depth, .slot = slot_of_[end]});
  }
}

void NodeCache::finish() {
  changes_.clear();
  tree_.finish(prompt_.size() == 0 ? none : node_of_[prompt_.at(prompt_.size())], changes_);
  for (const TreeChange& change : changes_) apply(change);
}

void NodeCache::apply(const TreeChange& change) {
  const std::int32_t blocks = change.end_blocks - change.begin_blocks;
  if (change.kind == TreeChange::Kind::merged) return set_node(last_block_[change.node], blocks, change.into);
  if (change.had_state) {
    slots_.release(slot_of_[change.node]);
    was_evicted_[last_block_[change.node]] = 1;
    eviction_ages_.add(now_s_ - used_s_[change.node]);
    ++counts_.state_evictions;
  }
  if (change.kind != TreeChange::Kind::leaf) return;
  set_node(last_block_[change.node], blocks, none);
  counts_.block_evictions += blocks;
}

CacheCounts NodeCache::counts() const {
  CacheCounts counts = counts_;
  counts.victims = tree_.evictions();
  counts.resident_blocks = tree_.nodes().blocks();
  counts.resident_states = tree_.nodes().states();
  counts.metadata_bytes = static_cast<std::int64_t>(tree_.bookkeeping_bytes());
  return counts;
}

void NodeCache::check_invariants() const {
  tree_.check_invariants();
  slots_.check_invariants();
  require_invariant(slots_.capacity_slots() - slots_.free_slots() == tree_.nodes().states(), "NodeCache",
                    "a slot got lost");
  const auto cached = std::ranges::count_if(node_of_, [](Index node) { return node != none; });
  require_invariant(cached == tree_.nodes().blocks(), "NodeCache", "a block got lost");
  for (Block block = 0; block < node_of_.size(); ++block) {
    const Index node = node_of_[block];
    require_invariant(node == none || tree_.nodes().contains(node), "NodeCache", "a block belongs to no node");
  }
}

}  // namespace stateport::replay
