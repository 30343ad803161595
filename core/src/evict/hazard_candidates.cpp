// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_candidates.hpp"

#include <utility>
#include <vector>

namespace stateport {

void HazardCandidates::keep(const KeptFacts& prefix) {
  const HazardModel::Position position = model_.remember(prefix);
  if (position == HazardModel::none) return;
  make_room(prefix.index);
  if (prefix.at == KeptAt::end) inherit(prefix.index, model_.demand(position));
  if (!prefix.has_state || positions_[prefix.index] == position) return;
  lose_state(prefix.index);
  model_.pin(position);
  positions_[prefix.index] = position;
}

void HazardCandidates::lose_state(Index index) noexcept {
  if (!known(index)) return;
  model_.unpin(std::exchange(positions_[index], inherited_[index].known() ? inherited_only : HazardModel::none));
}

void HazardCandidates::remove(Index index, Index heir) {
  if (!promises_hits(index)) return;
  lose_state(index);
  const HazardModel::Demand lost = inherited_[index];
  inherited_[index] = {};
  positions_[index] = HazardModel::none;
  if (heir == no_heir || !lost.known()) return;
  make_room(heir);
  if (const HazardModel::Demand& held = inherited_[heir]; !held.known() || lost.used_s > held.used_s)
    inherit(heir, lost);
}

void HazardCandidates::clear_all() noexcept {
  for (Index index = 0; index < positions_.size(); ++index) lose_state(index);
  positions_.clear();
  inherited_.clear();
}

void HazardCandidates::check_invariants() const {
  std::vector<HazardModel::Position> pinned;
  for (Index index = 0; index < positions_.size(); ++index)
    if (known(index)) pinned.push_back(position(index));
  for (Index index = 0; index < positions_.size(); ++index)
    require_invariant(promises_hits(index) == (known(index) || inherited_[index].known()), "HazardCandidates",
                      "a candidate of which nothing is known promises hits, or one that is known does not");
  model_.check_invariants(pinned);
}

}  // namespace stateport
