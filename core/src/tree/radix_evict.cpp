// SPDX-License-Identifier: Apache-2.0
#include "containers/prefetch.hpp"
#include "tree/radix_tree.hpp"

#include <iterator>
#include <utility>

namespace stateport::detail {

namespace {

/// The part of `node` that is evicted: its state alone, or all of it.
Victim victim_of(const RadixNodes& nodes, const SlotPool& pool, std::uint32_t node, bool whole) noexcept {
  Victim victim;
  victim.node = nodes.id(node);
  victim.end_tokens = nodes.tokens_of(nodes.end_page(node));
  if (whole) {
    victim.tokens = nodes.tokens(node);
    victim.kv = nodes.kv(node);
  }
  if (nodes[node].slot >= 0) {
    victim.slot = SlotId{nodes[node].slot};
    victim.tag = pool.tag(victim.slot);
  }
  return victim;
}

/// Of a leaf that is evicted, its tenant keeps the first pages that belong to its floor: they become a node.
void cut_to_share(RadixNodes& nodes, const TreeVictims& victims, std::uint32_t leaf) noexcept {
  const std::uint32_t pages = victims.takeable_pages(leaf);
  if (pages >= nodes[leaf].pages) return;
  // A leaf of two pages leaves a node to spare. No use of the upper part: it has no state, and goes next.
  const std::uint32_t upper = nodes.split(leaf, nodes[leaf].pages - pages);
  nodes[upper].tick = nodes[leaf].tick;
}

bool is_short(const EvictDemand& demand, const EvictResult& result, const MemoryCost& memory) noexcept {
  return result.tokens < demand.tokens || result.states < demand.states ||
         memory.of(result.tokens, result.states) < demand.bytes;
}

/// The unlocked leaf that was used longest ago, among those that are chosen and may go; for states the node of a state,
/// for bytes too if there is no leaf. The root: there is none.
std::uint32_t oldest_of(const RadixNodes& nodes, const SlotPool& pool, const TreeVictims& victims,
                        const EvictDemand& demand, const std::function<bool(KvIndex)>& chosen) {
  std::uint32_t oldest = RadixNodes::root;
  std::uint64_t least = UINT64_MAX;
  const auto consider = [&](std::uint32_t node, std::uint64_t tick) {
    if (tick >= least || !chosen(nodes.kv(node).back()) || !victims.is_takeable(node)) return;
    least = tick;
    oldest = node;
  };
  for (std::uint32_t node = 1; demand.states == 0 && node < nodes.size(); ++node)
    if (victims.is_leaf(node)) consider(node, nodes[node].tick);
  if (demand.tokens > 0 || oldest != RadixNodes::root) return oldest;
  for (std::int32_t i = 0; i < pool.capacity_slots(); ++i) {
    const SlotId slot{i};
    if (pool.is_free(slot) || pool.owner(slot) == SlotPool::caller || pool.lock_count(slot) > 0) continue;
    consider(static_cast<std::uint32_t>(pool.owner(slot)), pool.last_use_tick(slot));
  }
  return oldest;
}

}  // namespace

bool RadixTree::report_victim(std::uint32_t node, bool whole) const {
  return options_.on_victim && options_.on_victim(victim_of(nodes_, pool_, node, whole)) && nodes_[node].slot >= 0;
}

void RadixTree::release_state(std::uint32_t node, bool keep, Freed& freed, EvictResult& result) {
  const SlotId slot{nodes_[node].slot};
  nodes_[node].slot = RadixNode::lost_slot;
  --sizes_.evictable_states;
  if (keep) {
    pool_.set_owner(slot, SlotPool::caller);
  } else {
    freed.slots.push_back(slot);
    pool_.release(slot);
    ++result.states;
  }
  victims_.state_was_lost(node);
}

void RadixTree::remove_state(std::uint32_t node, Freed& freed, EvictResult& result) {
  freed.slots.emplace_back();  // room, before the listener is told
  freed.slots.pop_back();
  release_state(node, report_victim(node, false), freed, result);
  if (learning_) learning_->lost_state(node);
}

/// Locks stay with the node, as those of a node without a state.
void RadixTree::drop_state(std::uint32_t node, Freed* freed) {
  const SlotId slot{nodes_[node].slot};
  const std::int32_t locks = pool_.lock_count(slot);
  for (std::int32_t lock = 0; lock < locks; ++lock) pool_.unlock(slot);
  if (locks > 0) {
    ++sizes_.evictable_states;
    --sizes_.protected_states;
    victims_.unlock_state(slot);
  }
  EvictResult dropped;
  if (freed != nullptr) {
    remove_state(node, *freed, dropped);
  } else {
    Freed none;
    release_state(node, true, none, dropped);
    pool_.set_tag(slot, {});
    if (learning_) learning_->lost_state(node);
  }
  nodes_[node].slot -= locks * RadixNode::state_lock;
  if (victims_.ranks_states() && victims_.is_leaf(node)) victims_.offer(node);
}

void RadixTree::remove_leaf(std::uint32_t node, Freed& freed, EvictResult& result) {
  const RadixNode& entry = nodes_[node];
  const std::span<const KvIndex> kv = nodes_.kv(node);
  // A victim has not been used for long: each eviction fetches the memory that the next one touches.
  if (nodes_.listed(node)) {
    nodes_.fetch_pages(entry.newer);
    prefetch(&nodes_[nodes_[entry.newer].newer]);
  } else {
    nodes_.fetch_pages(node);
  }
  const std::uint32_t prepared = nodes_.prepare_removal(node);
  if (entry.slot >= 0) {  // room for both lists before either tells of this node
    freed.slots.emplace_back();
    freed.slots.pop_back();
  }
  freed.kv.insert(freed.kv.end(), kv.begin(), kv.end());
  const bool keep = report_victim(node, true);
  victims_.drop(node);
  if (const auto next = victims_.upcoming_leaf()) prefetch(&nodes_[*next]);
  if (entry.slot >= 0) release_state(node, keep, freed, result);
  result.tokens += std::ssize(kv);
  sizes_.evictable_tokens -= std::ssize(kv);
  kv_.remove(kv);

  const std::uint32_t parent = entry.parent;
  const std::uint32_t first_page = entry.first_page;
  const std::uint32_t pages = entry.pages;
  nodes_.remove(node, prepared);
  if (parent != root && victims_.is_leaf(parent)) victims_.offer(parent);  // it competes at once, by its own key (18)
  if (learning_) {
    const bool inherits = parent != root && nodes_[parent].children == 0;
    learning_->removed(node, inherits ? parent : LearningPolicy::no_heir);
    victims_.rank_state_again(parent);
  }
  if (events_.is_on()) events_.removed(first_page, pages);
}

void RadixTree::evict_node(std::uint32_t node, Freed& freed, EvictResult& result) {
  victims_.choose(node);
  if (!victims_.is_leaf(node)) return remove_state(node, freed, result);
  if (options_.owners != nullptr) [[unlikely]]
    cut_to_share(nodes_, victims_, node);
  remove_leaf(node, freed, result);
}

std::size_t RadixTree::peek_victims(VictimKind kind, std::span<Victim> out) {
  peeked_.resize(out.size());
  const std::size_t found = victims_.peek(kind, peeked_);
  for (std::size_t i = 0; i < found; ++i) out[i] = victim_of(nodes_, pool_, peeked_[i], victims_.is_leaf(peeked_[i]));
  return found;
}

void RadixTree::evict(EvictDemand demand, Freed& freed, EvictResult& result,
                      const std::function<bool(KvIndex)>& chosen) {
  while (chosen && is_short(demand, result, options_.memory)) {
    const std::uint32_t node = oldest_of(nodes_, pool_, victims_, demand, chosen);
    if (node == root) return;
    const bool leaf = victims_.is_leaf(node);
    if (leaf && options_.owners != nullptr) cut_to_share(nodes_, victims_, node);
    if (leaf)
      remove_leaf(node, freed, result);
    else
      remove_state(node, freed, result);
  }
  if (chosen) return;
  while (result.tokens < demand.tokens) {
    const auto leaf = victims_.next_leaf();
    if (!leaf) break;
    victims_.choose(*leaf);
    if (options_.owners != nullptr) [[unlikely]]
      cut_to_share(nodes_, victims_, *leaf);
    remove_leaf(*leaf, freed, result);
  }
  while (result.states < demand.states) {
    const auto node = victims_.next_state();
    if (!node) break;
    evict_node(*node, freed, result);
  }
  if (demand.bytes == 0) return;
  while (options_.memory.of(result.tokens, result.states) < demand.bytes) {
    const auto node = victims_.next_of_bytes();
    if (!node) break;
    const bool leaf = victims_.is_leaf(*node);
    std::uint32_t above = nodes_[*node].parent;
    evict_node(*node, freed, result);
    if (!leaf || learning_ == nullptr || !learning_->observes_prompts()) continue;
    // A policy that learns from prompts counts the KV above a leaf, up to the next fork or state, as the leaf's.
    const auto goes_whole = [&](std::uint32_t node) {
      if (options_.owners == nullptr) return true;
      const std::int64_t freed_bytes = options_.memory.of(result.tokens, result.states);
      return victims_.takeable_pages(node, freed_bytes) == nodes_[node].pages;
    };
    while (above != root && victims_.is_leaf(above) && nodes_[above].slot < 0 && goes_whole(above))
      remove_leaf(std::exchange(above, nodes_[above].parent), freed, result);
  }
}

void RadixTree::forget(std::uint32_t node, Freed& freed, EvictResult& result) {
  const std::int32_t slot = nodes_[node].slot;
  if (!victims_.is_leaf(node) && slot >= 0 && pool_.lock_count(SlotId{slot}) == 0) remove_state(node, freed, result);
  for (std::uint32_t leaf = node; leaf != root && victims_.is_leaf(leaf);)
    remove_leaf(std::exchange(leaf, nodes_[leaf].parent), freed, result);
}

void RadixTree::reset(Freed& freed) {
  // All that can fail comes before the first change.
  freed.kv.reserve(freed.kv.size() + static_cast<std::size_t>(sizes_.total_tokens()));
  freed.slots.reserve(freed.slots.size() + static_cast<std::size_t>(sizes_.total_states()));
  for (std::uint32_t node = 1; node < nodes_.size(); ++node) {
    if (nodes_[node].pages == 0) continue;
    const std::span<const KvIndex> kv = nodes_.kv(node);
    freed.kv.insert(freed.kv.end(), kv.begin(), kv.end());
    if (nodes_[node].slot < 0) continue;
    const SlotId slot{nodes_[node].slot};
    freed.slots.push_back(slot);
    while (pool_.lock_count(slot) > 0) pool_.unlock(slot);
    pool_.set_owner(slot, SlotPool::caller);
  }
  nodes_.clear();
  victims_.clear();
  if (learning_) learning_->cleared();
  sizes_ = {};
  kv_.clear();
  if (events_.is_on()) events_.cleared();
}

}  // namespace stateport::detail
