// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tier/node_list.hpp"
#include "tier/residency.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::detail {

/// Decides which contents a tier takes and which it evicts.
///
/// A full tier evicts states by the policy of the device, each to the next slower tier that takes it. KV goes with the
/// last state in its tier that needs it, to the fastest tier where another state needs it. A state whose KV is gone
/// everywhere goes, too, because no request can use it.
///
/// One eviction can cause others. They wait in lists, which the outermost call works off before it returns: first the
/// states and the KV that nothing needs any more, then the KV that moves to another tier and may evict more.
///
/// Nothing allocates after construction.
class Admission {
 public:
  explicit Admission(Residency& contents);

  /// Whether a state is worth its place in the tier. A state that the tier has evicted since it was made comes back
  /// only in place of one that the policy evicts before it: else write-through would store it twice.
  [[nodiscard]] bool is_worth_it(Medium medium, std::uint32_t node);
  /// Evicts states until the tier has this number of free bytes. A victim that is moved down makes no room until it has
  /// arrived. False: the tier has too little room now.
  [[nodiscard]] bool make_room(Medium medium, std::int64_t bytes);
  /// Every tier above another one frees some room for the next call: moves take time.
  void trim();
  /// The fastest tier in which a state needs this KV.
  [[nodiscard]] std::optional<Medium> needing_tier(std::uint32_t node) const noexcept;

  void evict_state(std::uint32_t node, Medium medium);
  /// Evicts the KV of this block, and of the blocks before it, where no state needs it any more. Removes the node if it
  /// holds nothing then.
  void prune(std::uint32_t node);
  /// If neither a tier nor the device has the KV of this block: evicts the states behind it from all tiers.
  void kv_is_gone(std::uint32_t node);
  /// The device has this content again: the host gives up its image. Slower tiers keep theirs.
  void on_device_again(std::uint32_t node, CacheContent content);
  /// Undoes one Residency::hold(), and makes up for evictions that it prevented meanwhile.
  void unpin(std::uint32_t node, CacheContent content);
  /// A load or a copy found the image missing or damaged.
  void lost(std::uint32_t node, CacheContent content, Medium medium);
  /// The contents of this node leave every medium: at once, or when what moves them or reads them has ended. The node
  /// stays until the next prune() at the earliest.
  void forget(std::uint32_t node);
  /// A store or a copy ended. `done`: all of its images have arrived.
  void arrived(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done);
  /// The tier held this KV before the cache was made. The tier evicts it if no state needs it when it wants room.
  void add_unclaimed(std::uint32_t node, Medium medium);
  void forget_unclaimed();
  /// Whether a tier holds KV of this block that no state may need.
  [[nodiscard]] bool is_unclaimed(std::uint32_t node) const;

 private:
  [[nodiscard]] double rank(std::uint32_t node) const noexcept;
  [[nodiscard]] bool drop_unclaimed(Medium medium);
  void move_state(std::uint32_t node, Medium from);
  void work_off();
  void evict_behind(std::uint32_t node);
  void prune_path(std::uint32_t node);
  void prune_block(std::uint32_t node, Medium medium);
  void leave_forgotten(std::uint32_t node);
  void move_kv(std::uint32_t node, Medium from);

  Residency& contents_;
  TierLevels& levels_;
  TierNodes& nodes_;
  TierOrders& orders_;
  StateForest& forest_;
  LearningPolicy* learning_;
  bool ranks_;                                         ///< keys of the policy are values that can be averaged
  std::array<double, medium_count> victim_rank_ = {};  ///< by medium: moving average over the victims
  std::array<NodeList, medium_count> unclaimed_;       ///< by medium
  NodeList to_prune_;
  NodeList to_cut_;  ///< whose states cannot be loaded any more
  struct Move {
    std::uint32_t node = TierNode::none;
    Medium from = Medium::host;
  };
  std::vector<Move> to_move_;  ///< KV, held
  // work_off() runs its first or its second half.
  bool works_ = false;
  bool moves_kv_ = false;
};

}  // namespace stateport::detail
