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

/// How often what a cache holds will be used: the hazard model's positions by candidate (node or block), and the demand
/// that a leaf inherited from what was evicted below it.
class HazardWorth {
 public:
  using Index = std::uint32_t;
  static constexpr Index no_heir = UINT32_MAX;

  explicit HazardWorth(std::size_t positions) : model_(positions) {}

  /// Beyond the room made here, keep() and clear() make it themselves.
  void reserve(std::size_t indices) {
    positions_.reserve(indices);
    inherited_.reserve(indices);
  }
  [[nodiscard]] HazardModel& model() noexcept { return model_; }
  [[nodiscard]] const HazardModel& model() const noexcept { return model_; }

  /// A new candidate of which nothing is known.
  void clear(Index index);
  /// A prefix was kept: its position is the candidate's while that has a state.
  void keep(const KeptFacts& prefix);
  void lose_state(Index index) noexcept;
  /// The candidate is gone. Who would have continued from it will hit at `heir`, if any.
  void remove(Index index, Index heir);
  void clear_all() noexcept;

  /// Hints that hits_per_s() will be asked: first of what is known of the candidate, then of its position.
  void fetch(Index index) const noexcept {
    detail::prefetch(positions_.data() + index);
    detail::prefetch(inherited_.data() + index);
  }
  void fetch_demand(Index index) const noexcept { model_.fetch(position(index)); }
  /// Uses per second from now on. At a leaf those count too that would have hit below it.
  [[nodiscard]] double hits_per_s(Index index, bool leaf) const noexcept;
  /// Whether the candidate's position is known.
  [[nodiscard]] bool known(Index index) const noexcept { return position(index) != HazardModel::none; }

  /// Throws std::logic_error naming the first violation. O(candidates + positions).
  void check_invariants() const;
  [[nodiscard]] std::size_t bytes() const noexcept {
    return model_.bytes() + positions_.capacity() * sizeof(HazardModel::Position) +
           inherited_.capacity() * sizeof(HazardModel::Demand);
  }

 private:
  void make_room(Index index) {
    if (index < positions_.size()) return;
    inherited_.resize(std::size_t{index} + 1);
    positions_.resize(std::size_t{index} + 1, HazardModel::none);
  }
  [[nodiscard]] HazardModel::Position position(Index index) const noexcept {
    return index < positions_.size() ? positions_[index] : HazardModel::none;
  }

  HazardModel model_;
  Table<HazardModel::Position> positions_;  ///< by candidate: of its end, pinned; none: unknown
  Table<HazardModel::Demand> inherited_;    ///< by candidate: of what will hit there now, though it ended elsewhere
};

// Some 26 candidates are ranked for a victim: this runs for each.

inline double HazardWorth::hits_per_s(Index index, bool leaf) const noexcept {
  if (index >= positions_.size()) return 0;
  const HazardModel::Demand& own = model_.demand(positions_[index]);
  const double hits = model_.index(own);
  return leaf && inherited_[index] != own ? std::max(hits, model_.index(inherited_[index])) : hits;
}

}  // namespace stateport
