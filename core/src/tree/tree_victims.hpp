// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "evict/tenant_ledger.hpp"
#include "evict/victim_order.hpp"
#include "tree/radix_nodes.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stateport::detail {

/// The next victims of a prefix tree: leaves, by node, and states, by slot, each in a VictimOrder.
///
/// Every evictable leaf and every evictable state is a candidate. A locked one, and a node that got children, stays one
/// until it comes up: it is dropped then, and offered again when it is eligible again. For a policy that ranks states,
/// leaves with a state and states have the same key, and leaves without a state are kept apart: they go first. Of all
/// other policies, states go least recently used first.
class TreeVictims {
 public:
  /// The options have the policy and the owners of pages. All three must outlive this.
  TreeVictims(RadixNodes& nodes, SlotPool& pool, const PrefixTreeOptions& options);
  TreeVictims(const TreeVictims&) = delete;
  TreeVictims& operator=(const TreeVictims&) = delete;

  /// Room for nodes 0 … nodes - 1.
  void reserve(std::size_t nodes);
  [[nodiscard]] bool ranks_states() const noexcept { return ranks_states_; }

  /// Whether a leaf goes whole if it goes.
  [[nodiscard]] bool is_leaf(std::uint32_t node) const noexcept {
    const RadixNode& entry = nodes_[node];
    return entry.pages > 0 && entry.children == 0 && entry.full_lock == 0;
  }
  /// A leaf became evictable: it was unlocked, lost its last child, or got or lost a state.
  void offer(std::uint32_t leaf) noexcept {
    if (ranks_states() && nodes_[leaf].slot < 0) return bare_.offer(bare_leaves(), leaf);
    leaves_.offer(leaves(), leaf);
  }
  /// A new leaf, without a state yet and the youngest of all.
  void offer_new(std::uint32_t leaf) noexcept {
    if (ranks_states()) return bare_.offer(bare_leaves(), leaf);
    leaves_.offer_newest(leaves(), leaf);
  }
  void drop(std::uint32_t leaf) noexcept {
    leaves_.erase(leaves(), leaf);
    if (ranks_states()) bare_.erase(bare_leaves(), leaf);
  }

  /// Precondition: `tick` is the largest so far, if the node is a leaf.
  void touch(std::uint32_t node, std::uint64_t tick) noexcept {
    nodes_[node].tick = tick;
    leaves_.used(leaves(), node);
  }
  /// Moves a leaf that is listed behind all others, after its tick was raised; false if it is not listed. A function of
  /// the nodes alone: a use of a path ends with it.
  [[nodiscard]] static bool used_in_list(RadixNodes& nodes, std::uint32_t leaf) noexcept {
    struct Links {
      RadixNodes& nodes;
      [[nodiscard]] RadixNode& node(std::uint32_t index) const noexcept { return nodes[index]; }
    };
    return LinkedRecency::used(Links{nodes}, leaf);
  }
  /// After the ticks of the path to `end`, which is not listed, were raised.
  void path_was_used(std::uint32_t end) noexcept {
    if (leaves_.keys_may_shrink()) rank_path_again(end);
  }

  /// A node got this state, used at `tick`.
  void add_state(std::uint32_t node, SlotId slot, std::uint64_t tick) noexcept {
    pool_.touch(slot, tick);
    states_.offer(states(), static_cast<std::uint32_t>(slot.value()));
    if (ranks_states() && is_leaf(node)) offer(node);
    leaves_.rank_again(leaves(), node);
  }
  void unlock_state(SlotId slot) noexcept { states_.offer_again(states(), static_cast<std::uint32_t>(slot.value())); }
  /// The node lost its state and stays.
  void state_was_lost(std::uint32_t node) noexcept { leaves_.rank_again(leaves(), node); }
  /// The key of the node's state, if it has one, may have become smaller.
  void rank_state_again(std::uint32_t node) noexcept {
    if (!states_.keys_may_shrink() || nodes_[node].slot < 0) return;
    if (learning_ != nullptr) learning_->measured(facts(node));
    states_.rank_again(states(), static_cast<std::uint32_t>(nodes_[node].slot));
  }

  // The node that goes next: a leaf whole, any other without its KV.
  [[nodiscard]] std::optional<std::uint32_t> next_leaf() {
    if (owners_ != nullptr) [[unlikely]]
      return ranks_states() ? next_turn(bare_.next(bare_leaves()), leaves_.next(leaves())) : leaves_.next(leaves());
    if (ranks_states())
      if (const auto bare = bare_.next(bare_leaves())) return bare;
    return leaves_.next(leaves());
  }
  [[nodiscard]] std::optional<std::uint32_t> next_state();
  /// For bytes: a leaf or a state, whatever the policy ranks lower.
  [[nodiscard]] std::optional<std::uint32_t> next_of_bytes();
  /// The nodes that go next, in order; each is named once. Answers how many.
  [[nodiscard]] std::size_t peek(VictimKind kind, std::span<std::uint32_t> out);
  /// Reports an eviction to a policy that learns.
  void choose(std::uint32_t victim) const noexcept {
    if (learning_ != nullptr && !learning_->has_no_expected_hits(victim)) learning_->chosen(facts(victim));
  }
  /// Probably the next leaf, for prefetching.
  [[nodiscard]] std::optional<std::uint32_t> upcoming_leaf() const noexcept { return leaves_.upcoming(); }

  [[nodiscard]] VictimFacts facts(std::uint32_t node) const noexcept;
  /// Whether the asking tenant may have the state of this node evicted, and of a leaf its last page.
  [[nodiscard]] bool is_takeable(std::uint32_t node) const noexcept {
    return owners_ == nullptr || owners_->ledger().turn(tenant(node), least_bytes(node)) != TenantLedger::Turn::never;
  }
  /// Where tenants have shares: pages at the end of a leaf that the asking tenant may have evicted, with its state.
  /// `freed_bytes`: what was evicted of the leaf's tenant and is not given back yet. If it is 0, a leaf that
  /// is_takeable() has at least one such page.
  [[nodiscard]] std::uint32_t takeable_pages(std::uint32_t leaf, std::int64_t freed_bytes = 0) const noexcept;
  void clear() noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return leaves_.bytes() + bare_.bytes(); }
  /// Throws std::logic_error naming the first violation. O(nodes + slots).
  void check_invariants() const;

 private:
  /// The candidates of leaves_, as VictimOrder asks for them.
  template <class Victims>
  struct Leaves {
    Victims& victims;
    [[nodiscard]] auto& node(std::uint32_t index) const noexcept { return victims.nodes_[index]; }
    [[nodiscard]] bool eligible(std::uint32_t index) const noexcept {
      return victims.is_leaf(index) && (node(index).slot >= 0 || !victims.ranks_states());
    }
    [[nodiscard]] VictimKey key(std::uint32_t index) const noexcept { return victims.key(index); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const noexcept { return node(index).tick; }
    [[nodiscard]] TenantId tenant(std::uint32_t index) const noexcept { return victims.tenant(index); }
    [[nodiscard]] std::int64_t bytes(std::uint32_t index) const noexcept { return victims.least_bytes(index); }
    void fetch(std::uint32_t index, VictimFetch what) const noexcept { victims.fetch(index, what); }
  };
  /// Those of bare_.
  struct BareLeaves {
    const TreeVictims& victims;
    [[nodiscard]] bool eligible(std::uint32_t index) const noexcept {
      return victims.is_leaf(index) && victims.nodes_[index].slot < 0;
    }
    [[nodiscard]] VictimKey key(std::uint32_t index) const noexcept { return victims.key(index); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const noexcept { return victims.nodes_[index].tick; }
    [[nodiscard]] TenantId tenant(std::uint32_t index) const noexcept { return victims.tenant(index); }
    [[nodiscard]] std::int64_t bytes(std::uint32_t index) const noexcept { return victims.least_bytes(index); }
  };
  /// Those of states_, by slot.
  struct States {
    const TreeVictims& victims;
    [[nodiscard]] bool has_owner(std::uint32_t slot) const noexcept {
      const SlotId id{static_cast<std::int32_t>(slot)};
      return !victims.pool_.is_free(id) && victims.pool_.owner(id) != SlotPool::caller;
    }
    [[nodiscard]] bool eligible(std::uint32_t slot) const noexcept {
      return has_owner(slot) && victims.pool_.lock_count(SlotId{static_cast<std::int32_t>(slot)}) == 0;
    }
    [[nodiscard]] VictimKey key(std::uint32_t slot) const noexcept { return victims.key(victims.owner(slot)); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t slot) const noexcept {
      return victims.pool_.last_use_tick(SlotId{static_cast<std::int32_t>(slot)});
    }
    [[nodiscard]] TenantId tenant(std::uint32_t slot) const noexcept { return victims.tenant(victims.owner(slot)); }
    [[nodiscard]] std::int64_t bytes(std::uint32_t slot) const noexcept {
      return victims.least_bytes(victims.owner(slot));
    }
    void fetch(std::uint32_t slot, VictimFetch what) const noexcept {
      if (has_owner(slot)) victims.fetch(victims.owner(slot), what);
    }
  };
  /// For the policy.
  class NodeTenants final : public LedgerTenants {
   public:
    explicit NodeTenants(const TreeVictims& victims) : LedgerTenants(victims.owners_->ledger()), victims_(victims) {}
    [[nodiscard]] std::uint8_t account_of(std::uint32_t node) const noexcept override { return victims_.tenant(node); }

   private:
    const TreeVictims& victims_;
  };
  [[nodiscard]] Leaves<TreeVictims> leaves() noexcept { return {*this}; }
  [[nodiscard]] Leaves<const TreeVictims> leaves() const noexcept { return {*this}; }
  [[nodiscard]] BareLeaves bare_leaves() const noexcept { return {*this}; }
  [[nodiscard]] States states() const noexcept { return {*this}; }
  [[nodiscard]] std::uint32_t owner(std::uint32_t slot) const noexcept {
    return static_cast<std::uint32_t>(pool_.owner(SlotId{static_cast<std::int32_t>(slot)}));
  }
  [[nodiscard]] VictimKey key(std::uint32_t node) const noexcept;
  // Where tenants have shares.
  [[nodiscard]] TenantId tenant(std::uint32_t node) const noexcept;
  /// The bytes that the eviction of a candidate frees at least: its state, and the last page of a leaf.
  [[nodiscard]] std::int64_t least_bytes(std::uint32_t node) const noexcept;
  /// Of two candidates the one whose turn it is, else the first.
  [[nodiscard]] std::optional<std::uint32_t> next_turn(std::optional<std::uint32_t> first,
                                                       std::optional<std::uint32_t> second) const noexcept;
  void fetch(std::uint32_t node, VictimFetch what) const noexcept;
  void rank_path_again(std::uint32_t node) noexcept;
  /// Adds the lengths that a LearningPolicy ranks by.
  void add_lengths(std::uint32_t node, VictimFacts& facts) const noexcept;
  /// The end of the longest shorter prefix with a state.
  [[nodiscard]] std::int64_t fallback_tokens(std::uint32_t node) const noexcept;
  void check_list() const;

  RadixNodes& nodes_;
  SlotPool& pool_;
  EvictionPolicy& policy_;
  LearningPolicy* learning_;    ///< the policy, if it learns
  const TenantOwners* owners_;  ///< of pages; null: tenants have no shares
  std::optional<NodeTenants> tenants_;
  std::int64_t state_bytes_;
  bool ranks_states_;
  VictimOrder<LinkedRecency> leaves_;  ///< by node; with a state, if the policy ranks states
  VictimOrder<> bare_;                 ///< by node: leaves without a state, if the policy ranks states
  VictimOrder<> states_;               ///< by slot
};

}  // namespace stateport::detail
