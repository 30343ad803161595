// SPDX-License-Identifier: Apache-2.0
// Which leaf and which state go next.
#include "tree/radix_tree.hpp"

namespace stateport::detail {
namespace {

/// How far up a leaf's chain is followed. What a chain saves per byte grows less and less with its length.
constexpr int chain_nodes_max = 256;
/// How far up a state is looked for. Deeper chains without one are rare, and a victim must not cost their length.
constexpr int fallback_nodes_max = 256;

}  // namespace

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
  if (learning_ != nullptr && facts.has_state) add_lengths(node, facts);
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

void RadixTree::rank_path_again(std::uint32_t node) noexcept {
  for (; node != root; node = nodes_[node].parent) leaves_.rank_again(leaves(), node);
}

void RadixTree::add_candidate(std::uint32_t node) noexcept {
  if (draws() && nodes_[node].slot < 0) return bare_.offer(bare_leaves(), node);
  leaves_.offer(leaves(), node);
}

std::optional<std::uint32_t> RadixTree::next_leaf() {
  if (draws())
    if (const auto bare = bare_.next(bare_leaves())) return bare;
  return leaves_.next(leaves());
}

std::optional<std::uint32_t> RadixTree::next_state() {
  const auto slot = states_.next(states());
  if (!slot) return std::nullopt;
  return owner(*slot);
}

std::optional<std::uint32_t> RadixTree::next_of_bytes() {
  // A policy that draws ranks leaves with a state among the states.
  const auto leaf = draws() ? bare_.next(bare_leaves()) : next_leaf();
  return leaf ? leaf : next_state();
}

}  // namespace stateport::detail
