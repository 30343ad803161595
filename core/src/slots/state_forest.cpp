// SPDX-License-Identifier: Apache-2.0
#include "slots/state_forest.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace stateport {

StateForest::StateForest(std::shared_ptr<EvictionPolicy> policy, const BlockDirectory& blocks, std::size_t slots,
                         bool kv_follows, const CandidateTenants* tenants)
    : policy_(std::move(policy)),
      learning_(policy_->learning()),
      blocks_(blocks),
      kv_follows_(kv_follows),
      nodes_(static_cast<std::size_t>(blocks.block_count())) {
  // A directory does not tell of a tick that gets newer.
  require(learning_ || !policy_->traits().key_may_shrink, "eviction", policy_->name(),
          "must not have keys that shrink with each use");
  require_state(!learning_ || learning_->claim(), "SlotAllocator", "the policy observes another cache");
  if (learning_ && tenants != nullptr) learning_->set_tenants(*tenants);
  if (learning_) learning_->reserve(nodes_.size());
  path_.reserve(slots);
  forks_.reserve(slots);
}

VictimFacts StateForest::facts(std::uint32_t index) const noexcept {
  const Node& node = nodes_[index];
  std::uint32_t fallback = parent_of(node);
  while (fallback != none && !nodes_[fallback].has_state) fallback = parent_of(nodes_[fallback]);
  const std::int64_t fallback_tokens = fallback == none ? 0 : nodes_[fallback].end_tokens;
  VictimFacts facts{
      .index = index,
      .used_tick = std::bit_cast<std::uint64_t>(blocks_.last_use_tick(BlockId{static_cast<std::int32_t>(index)})),
      .created_tick = node.created,
      .hits = node.hits,
      .has_state = true,
      .end_tokens = std::max(node.end_tokens, fallback_tokens),
      .fallback_tokens = fallback_tokens};
  if (node.children == 0) {
    facts.chain_tokens = std::max<std::int64_t>(facts.end_tokens - fallback_tokens, 1);
    facts.chain_fallback_tokens = fallback_tokens;
    if (kv_follows_) facts.tokens = std::max<std::int64_t>(facts.end_tokens - needed_tokens(node), 0);
  }
  return facts;
}

std::int64_t StateForest::needed_tokens(const Node& leaf) const noexcept {
  std::uint32_t above = parent_of(leaf);
  while (above != none && !nodes_[above].has_state && nodes_[above].children == 1) above = parent_of(nodes_[above]);
  return above == none ? 0 : nodes_[above].end_tokens;
}

void StateForest::attach(std::uint32_t index, std::uint32_t parent) noexcept {
  Node& node = nodes_[index];
  if (parent_of(node) == parent) return;
  detach(index);
  if (parent == none) return;
  node.parent = parent;
  node.parent_life = nodes_[parent].life;
  ++nodes_[parent].children;
}

std::uint32_t StateForest::detach(std::uint32_t index) noexcept {
  for (;;) {
    Node& node = nodes_[index];
    const std::uint32_t parent = parent_of(node);
    node.parent = none;
    if (parent == none) return none;
    --nodes_[parent].children;
    if (nodes_[parent].has_state || nodes_[parent].children > 0) return parent;
    index = parent;
  }
}

void StateForest::store(BlockId block) noexcept {
  // States that hung on an earlier state of the block would now have a longer prefix to fall back to. It will when a
  // request tells of both: until then no key gets smaller.
  forget(block);
  Node& node = nodes_[block.index()];
  node.created = ++created_;
  node.has_state = true;
}

std::uint32_t StateForest::evict(BlockId block) noexcept {
  if (learning_) learning_->chosen(facts(static_cast<std::uint32_t>(block.value())));
  return lose(block);
}

std::uint32_t StateForest::lose(BlockId block) noexcept {
  const auto index = static_cast<std::uint32_t>(block.value());
  Node& node = nodes_[index];
  node.has_state = false;
  if (node.children > 0) {
    if (learning_) learning_->lost_state(index);
    return none;
  }
  const std::uint32_t left = detach(index);
  const bool inherits = left != none && nodes_[left].has_state && nodes_[left].children == 0;
  if (learning_) learning_->removed(index, inherits ? left : LearningPolicy::no_heir);
  return left;
}

void StateForest::forget(BlockId block) noexcept {
  const auto index = static_cast<std::uint32_t>(block.value());
  Node& node = nodes_[index];
  if (learning_ && node.children > 0) learning_->removed(index, LearningPolicy::no_heir);
  detach(index);
  node = {.life = node.life + 1};
}

/// The next state of a prompt. One that was reported at another depth is none of its prefixes: hashes that belong to no
/// prompt must not make a circle of states.
void StateForest::follow(const Found& state, std::int32_t depth_blocks) {
  const auto index = static_cast<std::uint32_t>(state.block.value());
  Node& node = nodes_[index];
  if (node.depth_blocks != 0 && node.depth_blocks != depth_blocks) return;
  node.depth_blocks = depth_blocks;
  node.end_tokens = std::max<std::int64_t>(state.end_tokens, 0);
  note_fork();
  attach(index, path_.empty() ? none : path_.back());
  path_.push_back(index);
}

/// Of the last state so far, before the next one of this prompt is attached.
void StateForest::note_fork() {
  if (path_.empty()) return;
  const Node& node = nodes_[path_.back()];
  if (node.children >= 2) forks_.push_back(node.depth_blocks);
}

PromptPast StateForest::report(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s) noexcept {
  PromptFacts facts = prompt;
  facts.blocks = static_cast<std::int32_t>(hashes.size());
  // Positive hashes are the same numbers without a sign.
  const std::span keys(reinterpret_cast<const PositionKey*>(hashes.data()), hashes.size());
  facts.keys = keys.first(std::min(static_cast<std::size_t>(prompt.usable_blocks), keys.size()));
  facts.forks = forks_;
  const bool again = prompt.past.looked_up_s.has_value();
  if (learning_ && learning_->observes_prompts()) {
    learning_->set_time(now_s);
    if (!again) facts.past = learning_->looked_up(facts);
  }
  for (const std::uint32_t index : path_) {
    Node& node = nodes_[index];
    if (!again && node.depth_blocks == prompt.hit_blocks) {
      ++node.hits;
      if (learning_) learning_->used(index);
    }
    KeptAt at = node.depth_blocks <= prompt.matched_blocks ? KeptAt::branch : KeptAt::rung;
    if (node.depth_blocks == facts.blocks && prompt.tokens <= node.end_tokens) at = KeptAt::end;
    if (!learning_) continue;
    learning_->kept({.index = index,
                     .has_state = true,
                     .key = keys[static_cast<std::size_t>(node.depth_blocks) - 1],
                     .depth_blocks = node.depth_blocks,
                     .at = at,
                     .prompt = facts});
  }
  if (!facts.past.looked_up_s) facts.past.looked_up_s = now_s;
  return facts.past;
}

void StateForest::clear() noexcept {
  for (Node& node : nodes_) node = {.life = node.life + 1};
  if (learning_) learning_->cleared();
}

void StateForest::check_invariants(std::size_t blocks) const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "StateForest", what); };
  if (learning_) learning_->check_invariants();
  std::vector<std::uint32_t> children(blocks, 0);
  for (std::size_t index = 0; index < blocks; ++index) {
    const std::uint32_t parent = parent_of(nodes_[index]);
    if (parent == none) continue;
    check(parent < blocks, "a state hangs on a block that never had content");
    ++children[parent];
  }
  for (std::size_t index = 0; index < blocks; ++index) {
    const Node& node = nodes_[index];
    check(node.children == children[index], "the children of a state are counted wrong");
    check(node.has_state || node.children > 0 || parent_of(node) == none, "a block without a state hangs on another");
  }
}

}  // namespace stateport
