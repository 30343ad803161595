// SPDX-License-Identifier: Apache-2.0
// Which leaf and which state go next.
#include "radix_tree.hpp"

namespace stateport::detail {

bool RadixTree::is_victim_leaf(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  return entry.pages > 0 && entry.children == 0 && entry.full_lock == 0;
}

bool RadixTree::is_victim_state(std::uint32_t slot) const noexcept {
  const SlotId id{static_cast<std::int32_t>(slot)};
  return !pool_.is_free(id) && pool_.owner(id) != SlotPool::caller && pool_.lock_count(id) == 0;
}

VictimKey RadixTree::key(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  return options_.policy->key({.index = node,
                               .used_tick = entry.tick,
                               .created_tick = entry.created,
                               .hits = entry.hits,
                               .priority = entry.priority,
                               .tokens = tokens_of(entry.pages),
                               .has_state = entry.slot >= 0});
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
  leaves_.update(node, key(node));
}

void RadixTree::drop_candidate(std::uint32_t node) noexcept {
  if (listed(node))
    unlist(node);
  else
    leaves_.erase(node);
}

std::optional<std::uint32_t> RadixTree::next_leaf() {
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
  const auto slot = states_.top([this](std::uint32_t slot) { return is_victim_state(slot); },
                                [this](std::uint32_t slot) { return state_ticks_[slot]; });
  if (!slot) return std::nullopt;
  return static_cast<std::uint32_t>(pool_.owner(SlotId{static_cast<std::int32_t>(*slot)}));
}

}  // namespace stateport::detail
