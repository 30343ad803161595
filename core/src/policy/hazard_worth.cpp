// SPDX-License-Identifier: Apache-2.0
#include "hazard_worth.hpp"

#include <utility>
#include <vector>

namespace stateport {

void HazardWorth::clear(Index index) {
  lose_state(index);
  entry(index) = {};
}

void HazardWorth::keep(const KeptFacts& prefix) {
  const HazardModel::Position position = model_.remember(prefix);
  if (position == HazardModel::none) return;
  Entry& kept = entry(prefix.index);
  if (prefix.at == KeptAt::end) kept.inherited = model_.demand(position);
  if (!prefix.has_state || kept.position == position) return;
  lose_state(prefix.index);
  model_.pin(position);
  kept.position = position;
}

void HazardWorth::lose_state(Index index) noexcept {
  if (position(index) == HazardModel::none) return;
  model_.unpin(entries_[index].position);
  entries_[index].position = HazardModel::none;
}

void HazardWorth::remove(Index index, Index heir) {
  lose_state(index);
  const HazardModel::Demand lost = std::exchange(entry(index), {}).inherited;
  if (heir == no_heir || !lost.known()) return;
  HazardModel::Demand& inherited = entry(heir).inherited;
  if (!inherited.known() || lost.used_s > inherited.used_s) inherited = lost;
}

void HazardWorth::clear_all() noexcept {
  for (Index index = 0; index < entries_.size(); ++index) lose_state(index);
  entries_.clear();
}

void HazardWorth::check_invariants() const {
  std::vector<HazardModel::Position> pinned;
  for (Index index = 0; index < entries_.size(); ++index)
    if (known(index)) pinned.push_back(position(index));
  model_.check_invariants(pinned);
}

}  // namespace stateport
