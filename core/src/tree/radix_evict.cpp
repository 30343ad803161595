// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <stateport/core/containers/prefetch.hpp>

#include "tree/radix_tree.hpp"

namespace stateport::detail {

Victim RadixTree::victim(std::uint32_t node, bool whole) const noexcept {
  const RadixNode& entry = nodes_[node];
  const auto tokens = static_cast<std::size_t>(whole ? tokens_of(entry.pages) : 0);
  Victim victim{.node = id(node),
                .end_tokens = tokens_of(end_page(node)),
                .slot = {},
                .tag = {},
                .tokens = {arena_.tokens(entry.first_page), tokens},
                .kv = {arena_.kv(entry.first_page), tokens}};
  if (entry.slot < 0) return victim;
  victim.slot = SlotId{entry.slot};
  victim.tag = pool_.tag(victim.slot);
  return victim;
}

bool RadixTree::tell_victim(std::uint32_t node, bool whole) const {
  return options_.on_victim && options_.on_victim(victim(node, whole)) && nodes_[node].slot >= 0;
}

void RadixTree::release_state(std::uint32_t node, bool keep, Freed& freed, EvictResult& result) {
  const SlotId slot{nodes_[node].slot};
  nodes_[node].slot = lost_slot;
  --sizes_.evictable_states;
  if (keep) {
    pool_.set_owner(slot, SlotPool::caller);
  } else {
    freed.slots.push_back(slot);
    pool_.release(slot);
    ++result.states;
  }
  leaves_.rank_again(leaves(), node);
}

void RadixTree::remove_state(std::uint32_t node, Freed& freed, EvictResult& result) {
  freed.slots.emplace_back();  // room, before the listener is told
  freed.slots.pop_back();
  release_state(node, tell_victim(node, false), freed, result);
  if (learning_) learning_->lost_state(node);
}

void RadixTree::drop_state(std::uint32_t node, Freed& freed) {
  EvictResult dropped;
  remove_state(node, freed, dropped);
  if (draws() && is_victim_leaf(node)) add_candidate(node);
}

void RadixTree::fetch_pages(std::uint32_t node) const noexcept {
  const std::uint32_t page = nodes_[node].first_page;
  prefetch(arena_.kv(page));
  prefetch(arena_.tokens(page));
  prefetch(arena_.run_mark(page));
}

void RadixTree::remove_leaf(std::uint32_t node, Freed& freed, EvictResult& result) {
  RadixNode& entry = nodes_[node];
  const std::int64_t tokens = tokens_of(entry.pages);
  const KvIndex* kv = arena_.kv(entry.first_page);
  // A victim has not been used for long: each eviction fetches what the next one touches.
  if (listed(node)) {
    fetch_pages(entry.newer);
    prefetch(&nodes_[nodes_[entry.newer].newer]);
  } else {
    fetch_pages(node);
  }
  const std::uint32_t hash = child_hash(node);
  prefetch(children_.bucket(hash));
  if (entry.slot >= 0) {  // room for both lists before either tells of this node
    freed.slots.emplace_back();
    freed.slots.pop_back();
  }
  freed.kv.insert(freed.kv.end(), kv, kv + tokens);
  const bool keep = tell_victim(node, true);
  drop_candidate(node);
  if (const auto next = leaves_.upcoming()) prefetch(&nodes_[*next]);
  if (entry.slot >= 0) release_state(node, keep, freed, result);
  result.tokens += tokens;
  sizes_.evictable_tokens -= tokens;
  own_indices({kv, static_cast<std::size_t>(tokens)}, false);
  children_.erase(hash, node);
  arena_.release(entry.first_page, entry.pages);

  const std::uint32_t generation = entry.generation + 1;
  const std::uint32_t parent = entry.parent;
  const std::uint32_t name_space = entry.name_space;
  const std::uint32_t first_page = entry.first_page;
  const std::uint32_t pages = entry.pages;
  --nodes_[parent].children;
  entry = {};
  entry.generation = generation;
  entry.parent = free_head_;
  free_head_ = node;
  --live_nodes_;
  if (parent == root)
    names_.drop_child(name_space);
  else if (is_victim_leaf(parent))
    add_candidate(parent);  // it competes at once, by its own key (18)
  if (learning_) {
    const bool inherits = parent != root && nodes_[parent].children == 0;
    learning_->removed(node, inherits ? parent : LearningPolicy::no_heir);
  }
  if (events_.is_on()) events_.removed(first_page, pages);
}

void RadixTree::evict_node(std::uint32_t node, Freed& freed, EvictResult& result) {
  if (learning_) learning_->chosen(facts(node));
  if (is_victim_leaf(node)) return remove_leaf(node, freed, result);
  remove_state(node, freed, result);
}

template <class Order, class Source>
std::size_t RadixTree::peek(Order& order, const Source& source, std::span<Victim> out, bool by_slot) {
  peeked_.resize(out.size());
  const std::size_t found = order.peek(source, peeked_);
  for (std::size_t i = 0; i < found; ++i) {
    const std::uint32_t node = by_slot ? owner(peeked_[i]) : peeked_[i];
    out[i] = victim(node, is_victim_leaf(node));
  }
  return found;
}

std::size_t RadixTree::peek_victims(VictimKind kind, std::span<Victim> out) {
  std::size_t found = 0;
  const bool of_leaves = kind == VictimKind::tokens || (kind == VictimKind::bytes && !draws());
  if (kind != VictimKind::states && draws()) found = peek(bare_, bare_leaves(), out, false);
  if (of_leaves) found += peek(leaves_, leaves(), out.subspan(found), false);
  const std::size_t leaves_found = found;
  if (kind == VictimKind::tokens) return found;
  found += peek(states_, states(), out.subspan(found), true);
  if (!of_leaves) return found;
  // A leaf that goes takes its state along: it is named once.
  const auto twice = [&](const Victim& later) {
    return std::ranges::any_of(out.first(leaves_found), [&](const Victim& leaf) { return leaf.node == later.node; });
  };
  const auto kept = std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(leaves_found),
                                   out.begin() + static_cast<std::ptrdiff_t>(found), twice);
  return static_cast<std::size_t>(kept - out.begin());
}

EvictResult RadixTree::evict(EvictDemand demand, Freed& freed) {
  EvictResult result;
  while (result.tokens < demand.tokens) {
    const auto leaf = next_leaf();
    if (!leaf) break;
    if (learning_) learning_->chosen(facts(*leaf));
    remove_leaf(*leaf, freed, result);
  }
  while (result.states < demand.states) {
    const auto node = next_state();
    if (!node) break;
    evict_node(*node, freed, result);
  }
  if (demand.bytes == 0) return result;
  while (options_.memory.of(result.tokens, result.states) < demand.bytes) {
    const auto node = next_of_bytes();
    if (!node) break;
    evict_node(*node, freed, result);
  }
  return result;
}

void RadixTree::reset(Freed& freed) {
  // All that can fail comes before the first change.
  freed.kv.reserve(freed.kv.size() + static_cast<std::size_t>(sizes_.total_tokens()));
  freed.slots.reserve(freed.slots.size() + static_cast<std::size_t>(sizes_.total_states()));
  for (std::uint32_t node = 1; node < nodes_.size(); ++node) {
    RadixNode& entry = nodes_[node];
    if (entry.pages == 0) continue;
    const KvIndex* kv = arena_.kv(entry.first_page);
    freed.kv.insert(freed.kv.end(), kv, kv + tokens_of(entry.pages));
    if (entry.slot < 0) continue;
    const SlotId slot{entry.slot};
    freed.slots.push_back(slot);
    while (pool_.lock_count(slot) > 0) pool_.unlock(slot);
    pool_.set_owner(slot, SlotPool::caller);
  }
  free_head_ = none;
  for (auto node = static_cast<std::uint32_t>(nodes_.size()) - 1; node > 0; --node) {
    const std::uint32_t generation = nodes_[node].generation + 1;
    nodes_[node] = {};
    nodes_[node].generation = generation;
    nodes_[node].parent = free_head_;
    free_head_ = node;
  }
  nodes_[root].children = 0;
  nodes_[root].older = nodes_[root].newer = root;
  live_nodes_ = 0;
  arena_.clear();
  children_.clear();
  names_.clear();
  leaves_.clear();
  bare_.clear();
  states_.clear();
  if (learning_) learning_->cleared();
  sizes_ = {};
  owned_indices_.assign(owned_indices_.size(), 0);
  if (events_.is_on()) events_.cleared();
}

}  // namespace stateport::detail
