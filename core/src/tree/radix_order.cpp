// SPDX-License-Identifier: Apache-2.0
// Which leaf and which state go next.
#include "tree/radix_tree.hpp"

namespace stateport::detail {
namespace {

/// How far up a leaf's chain is followed. What a chain saves per byte grows less and less with its length.
constexpr int chain_nodes_max = 16;
/// How far up a state is looked for. Deeper chains without one are rare, and a victim must not cost their length.
constexpr int fallback_nodes_max = 64;

}  // namespace

bool RadixTree::is_victim_leaf(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  return entry.pages > 0 && entry.children == 0 && entry.full_lock == 0;
}

bool RadixTree::is_victim_state(std::uint32_t slot) const noexcept {
  const SlotId id{static_cast<std::int32_t>(slot)};
  return !pool_.is_free(id) && pool_.owner(id) != SlotPool::caller && pool_.lock_count(id) == 0;
}

VictimFacts RadixTree::facts(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  VictimFacts facts{.index = node,
                    .used_tick = entry.tick,
                    .created_tick = entry.created,
                    .hits = entry.hits,
                    .priority = entry.priority,
                    .tokens = tokens_of(entry.pages),
                    .has_state = entry.slot >= 0};
  if (has_memory_ && facts.has_state) add_lengths(node, facts);
  return facts;
}

std::int64_t RadixTree::fallback_tokens(std::uint32_t node) const noexcept {
  std::uint32_t at = nodes_[node].parent;
  for (int step = 0; step < fallback_nodes_max && at != root && nodes_[at].slot < 0; ++step) at = nodes_[at].parent;
  return tokens_of(path_pages_[at]);
}

void RadixTree::add_lengths(std::uint32_t node, VictimFacts& facts) const noexcept {
  facts.segment_tokens = tokens_of(nodes_[node].pages);
  facts.end_tokens = tokens_of(path_pages_[node]);
  facts.fallback_tokens = fallback_tokens(node);
  if (nodes_[node].children > 0) {
    facts.tokens = 0;
    return;
  }
  const auto only_child = [this](std::uint32_t at) { return at != root && nodes_[at].children == 1; };
  const auto tokens_from = [&](std::uint32_t top) {
    return facts.end_tokens - tokens_of(path_pages_[top] - nodes_[top].pages);
  };
  // What is above without a state is useless once this leaf is gone, and goes next.
  std::uint32_t top = node;
  for (int step = 0; step < fallback_nodes_max; ++step) {
    const std::uint32_t parent = nodes_[top].parent;
    if (!only_child(parent) || nodes_[parent].slot >= 0) break;
    top = parent;
  }
  facts.tokens = is_victim_leaf(node) ? tokens_from(top) : 0;
  for (int step = 0; step < chain_nodes_max && only_child(nodes_[top].parent); ++step) top = nodes_[top].parent;
  facts.chain_tokens = tokens_from(top);
  facts.chain_fallback_tokens = fallback_tokens(top);
}

void RadixTree::rank_again(std::uint32_t node) noexcept {
  if (leaves_.contains(node)) leaves_.update(node, key(node));
}

void RadixTree::rank_path_again(std::uint32_t node) noexcept {
  for (; node != root; node = nodes_[node].parent) rank_again(node);
}

bool RadixTree::list_by_tick(std::uint32_t node) noexcept {
  // A parent that lost its last child is mostly older than all that is listed, a leaf that was just unlocked younger.
  constexpr int near = 8;
  const std::uint64_t tick = nodes_[node].tick;
  std::uint32_t newer = nodes_[root].newer;
  std::uint32_t older = nodes_[root].older;
  for (int step = 0; step < near; ++step) {
    const bool last = older == root || nodes_[older].tick < tick;
    if (last || newer == root || tick < nodes_[newer].tick) {
      list_before(last ? nodes_[older].newer : newer, node);
      return true;
    }
    older = nodes_[older].older;
    newer = nodes_[newer].newer;
  }
  return false;
}

void RadixTree::add_candidate(std::uint32_t node) noexcept {
  if (listed(node)) return;
  if (by_last_use_ && !leaves_.contains(node) && list_by_tick(node)) return;
  if (draws_) return (nodes_[node].slot >= 0 ? draws_->leaves : draws_->useless).push(node);
  leaves_.update(node, key(node));
}

void RadixTree::drop_candidate(std::uint32_t node) noexcept {
  if (listed(node)) {
    unlist(node);
  } else if (draws_) {
    draws_->leaves.erase(node);
    draws_->useless.erase(node);
  } else {
    leaves_.erase(node);
  }
}

void RadixTree::add_state_candidate(SlotId slot) noexcept {
  if (draws_)
    draws_->states.push(static_cast<std::uint32_t>(slot.value()));
  else
    states_.update(static_cast<std::uint32_t>(slot.value()), state_ticks_[slot.index()]);
}

std::optional<std::uint32_t> RadixTree::next_leaf() {
  if (draws_) {
    const auto key_of = [this](std::uint32_t node) { return key(node); };
    const auto useless = draws_->useless.draw(
        [this](std::uint32_t node) { return is_victim_leaf(node) && nodes_[node].slot < 0; }, key_of);
    if (useless) return useless;
    return draws_->leaves.draw([this](std::uint32_t node) { return is_victim_leaf(node) && nodes_[node].slot >= 0; },
                               key_of);
  }
  const auto heaped = leaves_.top([this](std::uint32_t node) { return is_victim_leaf(node); },
                                  [this](std::uint32_t node) { return key(node); });
  std::uint32_t oldest = nodes_[root].newer;
  while (oldest != root && !is_victim_leaf(oldest)) {
    const std::uint32_t locked = oldest;
    oldest = nodes_[locked].newer;
    unlist(locked);
  }
  if (oldest == root || (heaped && nodes_[*heaped].tick < nodes_[oldest].tick)) return heaped;
  return oldest;
}

std::optional<std::uint32_t> RadixTree::next_state() {
  const auto eligible = [this](std::uint32_t slot) { return is_victim_state(slot); };
  const auto node_of = [this](std::uint32_t slot) {
    return static_cast<std::uint32_t>(pool_.owner(SlotId{static_cast<std::int32_t>(slot)}));
  };
  const auto slot = draws_ ? draws_->states.draw(eligible, [&](std::uint32_t slot) { return key(node_of(slot)); })
                           : states_.top(eligible, [this](std::uint32_t slot) { return state_ticks_[slot]; });
  if (!slot) return std::nullopt;
  return node_of(*slot);
}

std::optional<std::uint32_t> RadixTree::next_of_bytes() {
  if (!draws_) {
    const auto leaf = next_leaf();
    return leaf ? leaf : next_state();
  }
  // Leaves with a state are among the states.
  const auto useless =
      draws_->useless.draw([this](std::uint32_t node) { return is_victim_leaf(node) && nodes_[node].slot < 0; },
                           [this](std::uint32_t node) { return key(node); });
  return useless ? useless : next_state();
}

}  // namespace stateport::detail
