// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_worth.hpp"

#include <utility>
#include <vector>

namespace stateport {

void HazardWorth::clear(Index index) {
  make_room(index);
  lose_state(index);
  inherited_[index] = {};
}

void HazardWorth::keep(const KeptFacts& prefix) {
  const HazardModel::Position position = model_.remember(prefix);
  if (position == HazardModel::none) return;
  make_room(prefix.index);
  if (prefix.at == KeptAt::end) inherited_[prefix.index] = model_.demand(position);
  if (!prefix.has_state || positions_[prefix.index] == position) return;
  lose_state(prefix.index);
  model_.pin(position);
  positions_[prefix.index] = position;
}

void HazardWorth::lose_state(Index index) noexcept {
  if (position(index) == HazardModel::none) return;
  model_.unpin(std::exchange(positions_[index], HazardModel::none));
}

void HazardWorth::remove(Index index, Index heir) {
  make_room(index);
  lose_state(index);
  const HazardModel::Demand lost = std::exchange(inherited_[index], {});
  if (heir == no_heir || !lost.known()) return;
  make_room(heir);
  HazardModel::Demand& inherited = inherited_[heir];
  if (!inherited.known() || lost.used_s > inherited.used_s) inherited = lost;
}

void HazardWorth::clear_all() noexcept {
  for (Index index = 0; index < positions_.size(); ++index) lose_state(index);
  positions_.clear();
  inherited_.clear();
}

void HazardWorth::check_invariants() const {
  std::vector<HazardModel::Position> pinned;
  for (Index index = 0; index < positions_.size(); ++index)
    if (known(index)) pinned.push_back(position(index));
  model_.check_invariants(pinned);
}

}  // namespace stateport
