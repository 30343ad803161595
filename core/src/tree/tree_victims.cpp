// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_victims.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {
namespace {

/// How far up a leaf's chain is followed. The savings of a chain per byte grow less and less with its length.
constexpr int chain_nodes_max = 256;
/// How far up a state is looked for. Deeper chains without one are rare, and a victim must not cost their length.
constexpr int fallback_nodes_max = 256;

}  // namespace

TreeVictims::TreeVictims(RadixNodes& nodes, SlotPool& pool, const PrefixTreeOptions& options)
    : nodes_(nodes),
      pool_(pool),
      policy_(*options.policy),
      learning_(policy_.learning()),
      owners_(options.owners),
      state_bytes_(options.memory.state_bytes),
      ranks_states_(policy_.traits().ranks_states || policy_.traits().draws > 0) {
  const TenantLedger* const ledger = owners_ != nullptr ? &owners_->ledger() : nullptr;
  leaves_ = VictimOrder<LinkedRecency>(policy_.traits(), ledger);
  const VictimTraits states = ranks_states() ? policy_.traits() : VictimTraits{.by_last_use = true};
  states_ = VictimOrder<>(states, ledger);
  if (ranks_states()) bare_ = VictimOrder<>(states, ledger);
  states_.reserve(static_cast<std::size_t>(options.slots));
  if (learning_ == nullptr || owners_ == nullptr) return;
  tenants_.emplace(*this);
  learning_->set_tenants(*tenants_);
}

void TreeVictims::reserve(std::size_t nodes) {
  leaves_.reserve(nodes);
  if (ranks_states()) bare_.reserve(nodes);
}

void TreeVictims::fetch(std::uint32_t node, VictimFetch what) const noexcept {
  const RadixNode& entry = nodes_[node];
  if (what == VictimFetch::key) {
    prefetch(&entry);
    if (learning_ != nullptr) learning_->fetch(node);
  } else {
    nodes_.fetch_pages(node);
    leaves_.prefetch(node);
    if (ranks_states()) bare_.prefetch(node);
    if (entry.slot < 0) return;
    pool_.prefetch(SlotId{entry.slot});
    states_.prefetch(static_cast<std::uint32_t>(entry.slot));
  }
}

inline std::int64_t TreeVictims::fallback_tokens(std::uint32_t node) const noexcept {
  std::uint32_t at = nodes_[node].parent;
  for (int step = 0; step < fallback_nodes_max && at != RadixNodes::root && nodes_[at].slot < 0; ++step)
    at = nodes_[at].parent;
  return nodes_.tokens_of(nodes_.end_page(at));
}

// Some 26 candidates are ranked for a victim: a call here and there would be a tenth of their time.
[[gnu::always_inline]] inline void TreeVictims::add_lengths(std::uint32_t node, VictimFacts& facts) const noexcept {
  const auto only_child = [this](std::uint32_t at) { return at != RadixNodes::root && nodes_[at].children == 1; };
  const auto tokens_from = [&](std::uint32_t top) {
    return facts.end_tokens - nodes_.tokens_of(nodes_.end_page(top) - nodes_[top].pages);
  };
  facts.end_tokens = nodes_.tokens_of(nodes_.end_page(node));
  facts.fallback_tokens = fallback_tokens(node);
  // Nodes above that have no state serve this node alone. They are useless once a leaf is gone, and go next.
  std::uint32_t top = node;
  for (int step = 0; step < fallback_nodes_max; ++step) {
    const std::uint32_t parent = nodes_[top].parent;
    if (!only_child(parent) || nodes_[parent].slot >= 0) break;
    top = parent;
  }
  facts.segment_tokens = tokens_from(top);
  facts.tokens = is_leaf(node) ? facts.segment_tokens : 0;
  if (nodes_[node].children > 0) return;
  const std::uint32_t segment_top = top;
  for (int step = 0; step < chain_nodes_max && only_child(nodes_[top].parent); ++step) top = nodes_[top].parent;
  // Mostly the chain is the segment, and that one node.
  facts.chain_tokens = top == segment_top ? facts.segment_tokens : tokens_from(top);
  facts.chain_fallback_tokens = top == node ? facts.fallback_tokens : fallback_tokens(top);
}

VictimFacts TreeVictims::facts(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  VictimFacts facts{.index = node,
                    .used_tick = entry.tick,
                    .created_tick = entry.created,
                    .hits = entry.hits,
                    .priority = entry.priority,
                    .tokens = nodes_.tokens_of(entry.pages),
                    .has_state = entry.slot >= 0,
                    .children = entry.children};
  if (learning_ != nullptr && facts.has_state) add_lengths(node, facts);
  return facts;
}

VictimKey TreeVictims::key(std::uint32_t node) const noexcept {
  if (learning_ != nullptr && learning_->has_no_expected_hits(node)) return VictimKey::from(0, nodes_[node].tick);
  return policy_.key(facts(node));
}

void TreeVictims::rank_path_again(std::uint32_t node) noexcept {
  for (; node != RadixNodes::root; node = nodes_[node].parent) leaves_.rank_again(leaves(), node);
}

std::optional<std::uint32_t> TreeVictims::next_state() {
  const auto slot = states_.next(states());
  if (!slot) return std::nullopt;
  return owner(*slot);
}

TenantId TreeVictims::tenant(std::uint32_t node) const noexcept {
  return owners_->of(static_cast<std::size_t>(nodes_.kv(node).front() / nodes_.tokens_of(1)));
}

std::int64_t TreeVictims::least_bytes(std::uint32_t node) const noexcept {
  return (nodes_[node].slot >= 0 ? state_bytes_ : 0) + (is_leaf(node) ? owners_->bytes_each() : 0);
}

std::uint32_t TreeVictims::takeable_pages(std::uint32_t leaf, std::int64_t freed_bytes) const noexcept {
  const TenantId tenant = this->tenant(leaf);
  const TenantLedger& ledger = owners_->ledger();
  if (tenant == ledger.asker() || ledger[tenant].floor_bytes == 0) return nodes_[leaf].pages;
  const std::int64_t freed_with_it = freed_bytes + (nodes_[leaf].slot >= 0 ? state_bytes_ : 0);
  const std::int64_t bytes = std::max<std::int64_t>(ledger.takeable_bytes(tenant) - freed_with_it, 0);
  return static_cast<std::uint32_t>(std::min<std::int64_t>(bytes / owners_->bytes_each(), nodes_[leaf].pages));
}

std::optional<std::uint32_t> TreeVictims::next_turn(std::optional<std::uint32_t> first,
                                                    std::optional<std::uint32_t> second) const noexcept {
  if (!first || !second) return first ? first : second;
  const auto turn = [&](std::uint32_t node) { return owners_->ledger().turn(tenant(node), least_bytes(node)); };
  return turn(*second) < turn(*first) ? second : first;
}

std::optional<std::uint32_t> TreeVictims::next_of_bytes() {
  if (owners_ != nullptr) return next_turn(ranks_states() ? bare_.next(bare_leaves()) : next_leaf(), next_state());
  // A policy that ranks states ranks leaves with a state among them.
  const auto leaf = ranks_states() ? bare_.next(bare_leaves()) : next_leaf();
  return leaf ? leaf : next_state();
}

std::size_t TreeVictims::peek(VictimKind kind, std::span<std::uint32_t> out) {
  std::size_t found = 0;
  const bool leaves_too = kind == VictimKind::tokens || (kind == VictimKind::bytes && !ranks_states());
  if (kind != VictimKind::states && ranks_states()) found = bare_.peek(bare_leaves(), out);
  if (leaves_too) found += leaves_.peek(leaves(), out.subspan(found));
  if (kind == VictimKind::tokens) return found;
  const std::span<std::uint32_t> rest = out.subspan(found);
  const std::size_t slots = states_.peek(states(), rest);
  for (std::uint32_t& slot : rest.first(slots)) slot = owner(slot);
  // A leaf that goes takes its state along.
  const auto named = [&](std::uint32_t node) { return std::ranges::count(out.first(found), node) > 0; };
  const auto end = leaves_too ? std::remove_if(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(slots), named)
                              : rest.begin() + static_cast<std::ptrdiff_t>(slots);
  return static_cast<std::size_t>(end - rest.begin()) + found;
}

void TreeVictims::clear() noexcept {
  leaves_.clear();
  bare_.clear();
  states_.clear();
}

void TreeVictims::check_list() const {
  std::size_t found = 0;
  for (std::uint32_t at = nodes_[RadixNodes::root].newer; at != RadixNodes::root; at = nodes_[at].newer, ++found) {
    require_invariant(leaves_.strategy() == VictimStrategy::list && found <= nodes_.live(), structure,
                      "the list of leaves does not end");
    require_invariant(nodes_[at].pages > 0 && nodes_[at].children == 0, structure, "a listed node is no leaf");
  }
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    if (nodes_.listed(index)) --found;
  require_invariant(found == 0, structure, "a node is linked but not listed");
}

void TreeVictims::check_invariants() const {
  leaves_.check_invariants(leaves());
  bare_.check_invariants(bare_leaves());
  states_.check_invariants(states());
  check_list();
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0) continue;
    require_invariant(key(index) == policy_.key(facts(index)), structure,
                      "a node that has a rank is expected to have no hits");
    const bool candidate =
        ranks_states() && node.slot < 0 ? bare_.contains(bare_leaves(), index) : leaves_.contains(leaves(), index);
    require_invariant(candidate || !is_leaf(index), structure, "an evictable leaf is not indexed");
    const auto slot = static_cast<std::uint32_t>(node.slot);
    require_invariant(node.slot < 0 || pool_.lock_count(SlotId{node.slot}) > 0 || states_.contains(states(), slot),
                      structure, "an evictable state is not indexed");
  }
}

}  // namespace stateport::detail
