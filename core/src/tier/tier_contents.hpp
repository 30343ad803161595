// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include "evict/victim_order.hpp"
#include "slots/state_forest.hpp"
#include "tier/tier_nodes.hpp"
#include "tier/transfers_under_way.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stateport::detail {

/// Tells about contents of tiers, one image at a time.
class TierListener {
 public:
  virtual void on_tier(Medium medium, bool stored, const ImageKey& image) = 0;

 protected:
  ~TierListener() = default;
};

struct TierSetup {
  TierOptions tiers;  ///< checked, with the bytes of images filled in
  std::int64_t block_size_tokens = 1;
  std::int64_t state_grid_tokens = 1;  ///< all groups can have a state at multiples of it; whole blocks
  std::size_t groups = 1;
  /// The device can keep a state without the KV before it: a load of KV alone can make a hit.
  bool states_apart = false;
  std::size_t device_blocks = 0;   ///< of KV, at most
  std::size_t states = 0;          ///< on the device, at most
  std::size_t requests = 1;        ///< at a time, at most
  std::size_t request_blocks = 0;  ///< of the longest one
  EvictionOrder eviction = EvictionOrder::lru;
  EvictionOptions eviction_options;
  MemoryCost memory;
  TierListener* listener = nullptr;  ///< told of contents of tiers, if there is one
};

/// What lies in the tiers and on the device, what is on its way there, and what goes to make room. A TierIndex decides
/// by it.
///
/// Every tier evicts states by the policy of the device: to the next slower tier that is here. KV goes with the last
/// state in its tier that needs it, to the fastest where one does.
///
/// The remote tier is the one whose contents are not this cache's own. What is forgotten stays there, so no drop is
/// named.
///
/// Nothing allocates after construction.
class TierContents {
 protected:
  explicit TierContents(const TierSetup& setup);
  ~TierContents() = default;

  static constexpr std::uint32_t none = TierNode::none;
  using MediumBytes = std::array<std::int64_t, medium_count>;  ///< by medium
  struct Level {
    std::int64_t capacity = 0;
    std::int64_t going_bytes = 0;  ///< of images that are moved down, and still here
    TierUsage usage;
    VictimOrder<> order;
    double victim_rank = 0;                ///< moving average
    std::vector<std::uint32_t> unclaimed;  ///< attached KV, each node at most once
  };
  /// What a VictimOrder asks of the states in one tier.
  struct Source {
    const TierContents& contents;
    Medium medium;
    [[nodiscard]] bool eligible(std::uint32_t node) const {
      const TierItem& state = contents.nodes_[node].state;
      const bool drained = contents.draining_ && medium == contents.durable_tier();
      const bool kept = drained && (state.in & down_to(medium) & ~bit(medium)) != 0;
      return (state.in & bit(medium)) != 0 && state.readers == 0 && !state.going && !kept;
    }
    [[nodiscard]] VictimKey key(std::uint32_t node) const { return contents.forest_.key(node); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t node) const {
      return static_cast<std::uint64_t>(contents.nodes_[node].tick);
    }
  };

  [[nodiscard]] Level& level(Medium medium) noexcept { return levels_[static_cast<std::size_t>(medium)]; }
  [[nodiscard]] const Level& level(Medium medium) const noexcept { return levels_[static_cast<std::size_t>(medium)]; }
  [[nodiscard]] bool has(Medium medium) const noexcept { return level(medium).capacity > 0; }
  /// The next slower tier that is here.
  [[nodiscard]] std::optional<Medium> tier_below(Medium medium) const noexcept {
    const auto below = std::ranges::upper_bound(tiers_, medium);
    return below == tiers_.end() ? std::nullopt : std::optional(*below);
  }
  [[nodiscard]] Medium first_tier() const noexcept { return tiers_.front(); }
  [[nodiscard]] Medium last_tier() const noexcept { return tiers_.back(); }
  /// The slowest tier that outlives the process, if there is one.
  [[nodiscard]] Medium durable_tier() const noexcept { return has(Medium::file) ? Medium::file : Medium::remote; }
  /// The fastest tier where a state needs this KV, if any does.
  [[nodiscard]] std::optional<Medium> needing_tier(std::uint32_t node) const noexcept;
  /// What computing the tokens takes less what a load of so many bytes takes; none if not all of that is known.
  [[nodiscard]] std::optional<double> time_saved(std::int64_t tokens, const MediumBytes& bytes) const noexcept;
  /// KV is none of our business below the device.
  [[nodiscard]] bool states_alone() const noexcept { return options_.kv_elsewhere != nullptr; }
  [[nodiscard]] Source source(Medium medium) const noexcept { return {*this, medium}; }
  [[nodiscard]] TierItem& item(std::uint32_t node, CacheContent content) noexcept {
    return content == CacheContent::state ? nodes_[node].state : nodes_[node].kv;
  }
  [[nodiscard]] std::int64_t bytes_of(CacheContent content) const noexcept {
    return content == CacheContent::state ? options_.state_image_bytes : options_.kv_image_bytes;
  }
  [[nodiscard]] ImageKey key_of(std::uint32_t node, CacheContent content, std::size_t group) const noexcept;
  [[nodiscard]] static Medium fastest(MediumSet set) noexcept;
  /// What admission compares: the worth of a state by a policy that learns.
  [[nodiscard]] double rank(std::uint32_t node) const noexcept;
  /// Whether a state is worth its place in the tier. A state that the tier has evicted since it was made comes back
  /// only in place of one that the policy evicts before it: one that is written through would be stored twice else.
  [[nodiscard]] bool is_worth_it(Medium medium, std::uint32_t node);
  [[nodiscard]] bool make_room(Medium medium, std::int64_t bytes);
  [[nodiscard]] bool drop_unclaimed(Medium medium);
  void trim();
  /// Names a store or a copy. False: the queue is full.
  bool begin(Transfer::Kind kind, std::uint32_t node, CacheContent content, Medium from, Medium to, bool stays = false);
  void name(const Transfer& transfer, const UnderWay& under_way);
  /// All images of a store or a copy have been answered.
  void arrived(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done);
  void enter_tier(std::uint32_t node, CacheContent content, Medium medium);
  void leave_tier(std::uint32_t node, CacheContent content, Medium medium);
  void drop(std::uint32_t node, CacheContent content, Medium medium);
  void evict_state(std::uint32_t node, Medium medium);
  void move_state(std::uint32_t node, Medium from);
  /// Gives up the KV of the block, and of those before it, where no state needs it any more; and the node, if that
  /// holds nothing.
  void prune(std::uint32_t node);
  void prune_block(std::uint32_t node, Medium medium);
  void on_device_again(std::uint32_t node, CacheContent content);
  void state_is_gone(std::uint32_t node);
  void kv_is_gone(std::uint32_t node);
  void lost(std::uint32_t node, CacheContent content, Medium medium);
  void unpin(std::uint32_t node, CacheContent content);
  void let_go(std::uint32_t node, CacheContent content);
  void offer(std::uint32_t node);
  /// Removes the node and those before it as far as they hold nothing; returns the first that stays.
  std::uint32_t release(std::uint32_t node);
  void tell(Medium medium, bool stored, std::uint32_t node, CacheContent content);

  TierOptions options_;
  TierSpeeds speeds_;
  std::int64_t block_size_;
  std::size_t groups_;
  TierListener* listener_;
  std::shared_ptr<EvictionPolicy> policy_;
  bool ranks_ = false;  ///< keys are values that can be averaged
  TierNodes nodes_;
  StateForest forest_;
  std::array<Level, medium_count> levels_;
  std::vector<Medium> tiers_;  ///< that are here, from the fastest on; at least one
  std::vector<Transfer> plan_;
  TransfersUnderWay under_way_;
  std::int64_t queued_bytes_ = 0;      ///< stores and moves
  std::vector<std::uint32_t> behind_;  ///< scratch of kv_is_gone(), each node at most once
  std::uint64_t call_ = 1;
  std::int64_t tick_ = 0;
  std::vector<MediumSet> unclaimed_in_;  ///< by node: the tiers whose `unclaimed` names it
  bool draining_ = false;                ///< the durable tier keeps what is above it, too: it would be written again
};

}  // namespace stateport::detail
