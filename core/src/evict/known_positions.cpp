// SPDX-License-Identifier: Apache-2.0
#include "evict/known_positions.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

#include <vector>

namespace stateport {

using detail::mixed_hash;

KnownPositions::KnownPositions(std::size_t capacity) : capacity_(capacity), ages_(1) {
  entries_.reserve(capacity);
  table_.reserve(capacity);
}

void KnownPositions::share(const CandidateTenants& tenants) {
  STATEPORT_ASSERT(entries_.empty());
  tenants_ = &tenants;
  ages_.resize(tenants.accounts());
  owned_.resize(capacity_);
}

KnownPositions::Position KnownPositions::find(PositionKey key) const noexcept {
  return table_.find(mixed_hash(key), [&](Position position) { return entries_[position].key == key; });
}

KnownPositions::Position KnownPositions::add(PositionKey key, std::uint8_t account) noexcept {
  STATEPORT_ASSERT(!is_full() && find(key) == none);
  const auto position = static_cast<Position>(entries_.size());
  entries_.emplace_back();
  entries_[position].key = key;
  table_.insert(mixed_hash(key), position);
  enter(position, account);
  use(position);
  return position;
}

/// Of accounts that have more than the part of their floors. If none has, the account gives up one of its own.
KnownPositions::Position KnownPositions::oldest(std::uint8_t account) const noexcept {
  if (owned_.empty()) return ages_.front().oldest;
  Position oldest = none;
  for (std::size_t i = 0; i < ages_.size(); ++i) {
    const Position of_account = ages_[i].oldest;
    if (of_account == none) continue;
    const double floor = tenants_->floor_share(static_cast<std::uint8_t>(i)) * static_cast<double>(capacity_);
    if (static_cast<double>(ages_[i].count) <= floor) continue;
    if (oldest == none || owned_[of_account].used_tick < owned_[oldest].used_tick) oldest = of_account;
  }
  return oldest == none ? ages_[account].oldest : oldest;
}

void KnownPositions::replace(Position position, PositionKey key, std::uint8_t account) noexcept {
  STATEPORT_ASSERT(!entries_[position].pinned() && find(key) == none);
  leave_list(position);
  leave(position);
  table_.erase(mixed_hash(entries_[position].key), position);
  entries_[position] = {.key = key};
  table_.insert(mixed_hash(key), position);
  enter(position, account);
  use(position);
}

void KnownPositions::give(Position position, std::uint8_t account) noexcept {
  if (owned_.empty() || owned_[position].account == account) return;
  if (!entries_[position].pinned()) leave_list(position);
  leave(position);
  enter(position, account);
  use(position);
}

void KnownPositions::enter(Position position, std::uint8_t account) noexcept {
  if (owned_.empty()) return;
  owned_[position].account = account;
  ++ages_[account].count;
}

void KnownPositions::leave(Position position) noexcept {
  if (!owned_.empty()) --ages_[owned_[position].account].count;
}

void KnownPositions::pin(Position position) noexcept {
  Entry& entry = entries_[position];
  if (!entry.pinned()) {
    leave_list(position);
    entry.newer = pinned_mark;
    entry.older = 0;
  }
  ++entry.older;
}

void KnownPositions::unpin(Position position) noexcept {
  Entry& entry = entries_[position];
  STATEPORT_ASSERT(entry.pinned() && entry.older > 0);
  if (--entry.older > 0) return;
  entry.newer = entry.older = none;
  use(position);
}

void KnownPositions::use(Position position) noexcept {
  Entry& entry = entries_[position];
  if (entry.pinned()) return;
  if (!owned_.empty()) owned_[position].used_tick = ++tick_;
  Ages& ages = this->ages(position);
  if (ages.newest == position) return;
  leave_list(position);
  entry.older = ages.newest;
  if (ages.newest != none) entries_[ages.newest].newer = position;
  ages.newest = position;
  if (ages.oldest == none) ages.oldest = position;
}

void KnownPositions::leave_list(Position position) noexcept {
  Entry& entry = entries_[position];
  Ages& ages = this->ages(position);
  if (entry.newer != none) entries_[entry.newer].older = entry.older;
  if (entry.older != none) entries_[entry.older].newer = entry.newer;
  if (ages.newest == position) ages.newest = entry.older;
  if (ages.oldest == position) ages.oldest = entry.newer;
  entry.newer = entry.older = none;
}

void KnownPositions::check_invariants(std::span<const Position> pinned_by) const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "KnownPositions", what); };
  check(entries_.size() <= capacity_, "more positions than there is room for");
  std::vector<std::uint32_t> pins(entries_.size(), 0);
  for (const Position position : pinned_by) {
    check(position < entries_.size(), "a position is pinned that is not there");
    ++pins[position];
  }
  std::size_t pinned = 0;
  std::vector<std::size_t> counts(ages_.size(), 0);
  for (Position position = 0; position < entries_.size(); ++position) {
    const Entry& entry = entries_[position];
    check(find(entry.key) == position, "a position is not found by its key");
    check((entry.pinned() ? entry.older : 0) == pins[position], "a position has other pins than candidates");
    pinned += entry.pinned();
    if (!owned_.empty()) ++counts[owned_[position].account];
  }
  check(table_.count() == entries_.size(), "the table has another number of positions");
  table_.check_invariants([this](Position position) { return mixed_hash(entries_[position].key); });
  std::size_t listed = 0;
  for (std::size_t account = 0; account < ages_.size(); ++account) {
    check(ages_[account].count == counts[account], "the positions of a tenant are counted wrong");
    check_list(account, listed);
  }
  check(listed + pinned == entries_.size(), "a position is neither pinned nor in a list of ages");
}

void KnownPositions::check_list(std::size_t account, std::size_t& listed) const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "KnownPositions", what); };
  Position newer = none;
  for (Position position = ages_[account].newest; position != none && listed <= entries_.size();
       position = entries_[position].older) {
    const Entry& entry = entries_[position];
    check(entry.newer == newer && !entry.pinned(), "a list of ages is broken");
    check(owned_.empty() || owned_[position].account == account, "a position is in the list of another tenant");
    check(owned_.empty() || newer == none || owned_[position].used_tick < owned_[newer].used_tick,
          "a list of ages is not in order of uses");
    newer = position;
    ++listed;
  }
  check(ages_[account].oldest == newer, "a list of ages ends elsewhere");
}

}  // namespace stateport
