// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>

#include "evict/victim_order.hpp"
#include "slots/state_forest.hpp"
#include "tier/tier_levels.hpp"
#include "tier/tier_nodes.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace stateport::detail {

/// The order in which the policy evicts the states of each tier. The costs are those of VictimOrder.
class TierOrders {
 public:
  /// The arguments must outlive this object.
  TierOrders(const VictimTraits& traits, const TierLevels& levels, const TierNodes& nodes, const StateForest& forest)
      : levels_(levels), nodes_(nodes), forest_(forest) {
    for (const Medium medium : levels.tiers()) {
      order(medium) = VictimOrder<>(traits);
      order(medium).reserve(nodes.capacity());
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> next(Medium medium) { return order(medium).next(source(medium)); }
  /// Whether the policy evicts `node` before `other`.
  [[nodiscard]] bool precedes(Medium medium, std::uint32_t node, std::uint32_t other) const noexcept {
    return order(medium).precedes(source(medium), node, other);
  }
  /// The state may be evicted from the tiers that hold it.
  void offer(std::uint32_t node) {
    for (const Medium medium : levels_.tiers())
      if ((nodes_[node].state.in & bit(medium)) != 0) order(medium).offer(source(medium), node);
  }
  void erase(std::uint32_t node, Medium medium) { order(medium).erase(source(medium), node); }
  /// The worth of the state may have fallen.
  void rank_again(std::uint32_t node) noexcept {
    for (const Medium medium : levels_.tiers()) order(medium).rank_again(source(medium), node);
  }
  /// While it drains, the durable tier keeps the states that faster media have, too: it would have to store them again.
  void set_draining(bool draining) noexcept { draining_ = draining; }
  /// False: the tier could evict the state, and the order has lost it.
  [[nodiscard]] bool is_complete(std::uint32_t node, Medium medium) const {
    return !source(medium).eligible(node) || order(medium).contains(source(medium), node);
  }

 private:
  /// The source of the VictimOrder of one tier.
  struct Source {
    const TierOrders& orders;
    Medium medium;
    [[nodiscard]] bool eligible(std::uint32_t node) const {
      const TierItem& state = orders.nodes_[node].state;
      const bool drained = orders.draining_ && medium == orders.levels_.durable();
      const bool kept = drained && (state.in & down_to(medium) & ~bit(medium)) != 0;
      return (state.in & bit(medium)) != 0 && state.readers == 0 && !state.going && !kept;
    }
    [[nodiscard]] VictimKey key(std::uint32_t node) const { return orders.forest_.key(node); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t node) const {
      return static_cast<std::uint64_t>(orders.nodes_[node].tick);
    }
  };

  [[nodiscard]] Source source(Medium medium) const noexcept { return {*this, medium}; }
  [[nodiscard]] VictimOrder<>& order(Medium medium) noexcept { return orders_[index_of(medium)]; }
  [[nodiscard]] const VictimOrder<>& order(Medium medium) const noexcept { return orders_[index_of(medium)]; }

  const TierLevels& levels_;
  const TierNodes& nodes_;
  const StateForest& forest_;
  std::array<VictimOrder<>, medium_count> orders_;
  bool draining_ = false;
};

}  // namespace stateport::detail
