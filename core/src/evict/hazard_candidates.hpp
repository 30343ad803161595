// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/hazard_model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stateport {

/// How often the contents of a cache will be used: the hazard model's positions by candidate (node or block), and the
/// demand that a leaf inherited from evicted positions below it.
class HazardCandidates {
 public:
  using Index = std::uint32_t;
  static constexpr Index no_heir = UINT32_MAX;

  explicit HazardCandidates(std::size_t positions) : model_(positions) {}

  /// Beyond the room made here, keep() and remove() make it themselves.
  void reserve(std::size_t indices) {
    positions_.reserve(indices);
    inherited_.reserve(indices);
  }
  [[nodiscard]] HazardModel& model() noexcept { return model_; }
  [[nodiscard]] const HazardModel& model() const noexcept { return model_; }

  /// A prefix was kept: its position is the candidate's while that has a state.
  void keep(const KeptFacts& prefix);
  void lose_state(Index index) noexcept;
  /// The candidate is gone. Requests that would have continued from it will hit at `heir`, if there is one.
  void remove(Index index, Index heir);
  void clear_all() noexcept;

  /// A hint that promises_hits() will be asked.
  void fetch(Index index) const noexcept { detail::prefetch(positions_.data() + index); }
  /// Uses per second from now on. At a leaf, uses count too that would have hit below it.
  [[nodiscard]] double hits_per_s(Index index, bool leaf) const noexcept;
  /// If not, hits_per_s() is 0.
  [[nodiscard]] bool promises_hits(Index index) const noexcept {
    return index < positions_.size() && positions_[index] != HazardModel::none;
  }
  /// Whether the candidate's position is known.
  [[nodiscard]] bool known(Index index) const noexcept { return position(index) != HazardModel::none; }

  /// Throws std::logic_error naming the first violation. O(candidates + positions).
  void check_invariants() const;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return model_.bytes() + positions_.size() * sizeof(HazardModel::Position) +
           inherited_.size() * sizeof(HazardModel::Demand);
  }

 private:
  void make_room(Index index) {
    if (index < positions_.size()) return;
    inherited_.resize(std::size_t{index} + 1);
    positions_.resize(std::size_t{index} + 1, HazardModel::none);
  }
  [[nodiscard]] HazardModel::Position position(Index index) const noexcept {
    const bool known = index < positions_.size() && positions_[index] < inherited_only;
    return known ? positions_[index] : HazardModel::none;
  }
  void inherit(Index index, const HazardModel::Demand& demand) noexcept {
    inherited_[index] = demand;
    if (positions_[index] == HazardModel::none) positions_[index] = inherited_only;
  }

  HazardModel model_;
  /// A place of positions_: the candidate's position is unknown, but inherited_ is known. positions_ alone says
  /// that nothing is known of a candidate, which in a large cache is true for most.
  static constexpr HazardModel::Position inherited_only = HazardModel::none - 1;

  Table<HazardModel::Position> positions_;  ///< by candidate: of its end, pinned; none: nothing is known
  Table<HazardModel::Demand>
      inherited_;  ///< by candidate: of prompts that will hit there now, though they ended elsewhere
};

// Some 26 candidates are ranked for a victim: this runs for each.

inline double HazardCandidates::hits_per_s(Index index, bool leaf) const noexcept {
  if (!promises_hits(index)) return 0;
  const HazardModel::Demand& own = model_.demand(position(index));
  double hits = model_.index(own);
  if (leaf && inherited_[index] != own) hits = std::max(hits, model_.index(inherited_[index]));
  return own.own_rate ? model_.with_own_rate(position(index), hits) : hits;
}

}  // namespace stateport
