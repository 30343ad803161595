// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>

#include "slots/state_forest.hpp"
#include "tier/tier_levels.hpp"
#include "tier/tier_nodes.hpp"
#include "tier/tier_orders.hpp"
#include "tier/tier_setup.hpp"
#include "tier/tier_transfers.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace stateport::detail {

/// Which content lies in which tier: the prefixes that are cached anywhere, the bytes and images of each tier, and the
/// order in which the policy evicts the states of each. Every change to a tier is made here; Admission decides which.
///
/// The remote tier is shared with other caches. The images that this cache knows to be there count as its contents.
///
/// Calls are O(1) for each image, besides the costs of VictimOrder. Nothing allocates after construction.
class Residency {
 public:
  /// `transfers` must outlive this object. The stores, copies and drops that calls decide are added to it.
  Residency(const TierSetup& setup, TierTransfers& transfers);

  [[nodiscard]] TierLevels& levels() noexcept { return levels_; }
  [[nodiscard]] const TierLevels& levels() const noexcept { return levels_; }
  [[nodiscard]] TierNodes& nodes() noexcept { return nodes_; }
  [[nodiscard]] const TierNodes& nodes() const noexcept { return nodes_; }
  [[nodiscard]] TierOrders& orders() noexcept { return orders_; }
  [[nodiscard]] EvictionPolicy& policy() noexcept { return *policy_; }
  [[nodiscard]] StateForest& forest() noexcept { return forest_; }
  [[nodiscard]] const StateForest& forest() const noexcept { return forest_; }

  [[nodiscard]] TierItem& item(std::uint32_t node, CacheContent content) noexcept {
    return content == CacheContent::state ? nodes_[node].state : nodes_[node].kv;
  }
  /// Where the state of the node lies, as far as a load of KV up to this node can use it.
  [[nodiscard]] MediumSet usable_state(std::uint32_t node) const noexcept {
    return node == TierNode::none ? MediumSet{0} : static_cast<MediumSet>(nodes_[node].state.in & usable_states_);
  }
  /// Tiers do not hold KV: the engine keeps it elsewhere.
  [[nodiscard]] bool states_alone() const noexcept { return options_.kv_elsewhere != nullptr; }
  [[nodiscard]] std::int64_t bytes_of(CacheContent content) const noexcept {
    return content == CacheContent::state ? options_.state_image_bytes : options_.kv_image_bytes;
  }
  /// The number of images of one content.
  [[nodiscard]] std::size_t images_of(CacheContent content) const noexcept {
    return content == CacheContent::state ? groups_ : 1;
  }
  [[nodiscard]] ImageKey key_of(std::uint32_t node, CacheContent content, std::size_t group) const noexcept;
  /// Whether the queue of stores and copies has room for this content.
  [[nodiscard]] bool has_queue_room(CacheContent content) const noexcept {
    return queued_bytes_ + bytes_of(content) <= options_.queue_bytes;
  }

  /// The node is used now.
  void touch(std::uint32_t node) noexcept { nodes_[node].tick = ++tick_; }
  /// A content with a reader is not evicted. let_go() undoes one hold().
  void hold(std::uint32_t node, CacheContent content) noexcept { ++item(node, content).readers; }
  void let_go(std::uint32_t node, CacheContent content);
  /// Neither a tier nor the device has the state any more: without effect if one has it.
  void forget_state(std::uint32_t node);
  /// Removes the node, and then its parents, as long as they hold nothing. Returns the first that stays.
  std::uint32_t release(std::uint32_t node);

  /// The states of all groups lie on the device.
  void enter_device(std::uint32_t node);
  /// The tier has this content from now on, without a transfer.
  void enter(std::uint32_t node, CacheContent content, Medium medium);
  /// The tier gives this content up.
  void leave(std::uint32_t node, CacheContent content, Medium medium);
  /// Begins a store or a copy. `stays`: the tier `from` keeps its image. False: the queue is full.
  [[nodiscard]] bool begin(Transfer::Kind kind, std::uint32_t node, CacheContent content, Medium from, Medium to,
                           bool stays = false);
  /// A store or a copy ended. `done`: all of its images have arrived.
  void finish(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done);
  /// Forgets all contents of all tiers, with an event and a drop for each.
  void clear();

  /// The number of images that are on their way into a tier.
  [[nodiscard]] std::size_t parts_coming() const noexcept;
  /// Throws std::logic_error naming the first violation. O(nodes).
  void check_invariants() const;

 private:
  void report(Medium medium, bool stored, std::uint32_t node, CacheContent content);
  void drop(std::uint32_t node, CacheContent content, Medium medium);

  TierOptions options_;
  std::size_t groups_;
  MediumSet usable_states_;  ///< media whose states are of use: with TierSetup::states_apart the device, too
  TierListener* listener_;
  TierTransfers& transfers_;
  std::shared_ptr<EvictionPolicy> policy_;
  TierLevels levels_;
  TierNodes nodes_;
  StateForest forest_;
  TierOrders orders_;
  std::int64_t queued_bytes_ = 0;
  std::int64_t tick_ = 0;
};

}  // namespace stateport::detail
