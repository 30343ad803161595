// SPDX-License-Identifier: Apache-2.0
#include "evict/known_positions.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

#include <vector>

namespace stateport {

using detail::mixed_hash;

KnownPositions::KnownPositions(std::size_t capacity) : capacity_(capacity) {
  entries_.reserve(capacity);
  table_.reserve(capacity);
}

KnownPositions::Position KnownPositions::find(PositionKey key) const noexcept {
  return table_.find(mixed_hash(key), [&](Position position) { return entries_[position].key == key; });
}

KnownPositions::Position KnownPositions::add(PositionKey key) noexcept {
  STATEPORT_ASSERT(!is_full() && find(key) == none);
  const auto position = static_cast<Position>(entries_.size());
  entries_.emplace_back();
  entries_[position].key = key;
  table_.insert(mixed_hash(key), position);
  use(position);
  return position;
}

void KnownPositions::replace(Position position, PositionKey key) noexcept {
  STATEPORT_ASSERT(!entries_[position].pinned() && find(key) == none);
  leave_list(position);
  table_.erase(mixed_hash(entries_[position].key), position);
  entries_[position] = {.key = key};
  table_.insert(mixed_hash(key), position);
  use(position);
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
  if (entry.pinned() || newest_ == position) return;
  leave_list(position);
  entry.older = newest_;
  if (newest_ != none) entries_[newest_].newer = position;
  newest_ = position;
  if (oldest_ == none) oldest_ = position;
}

void KnownPositions::leave_list(Position position) noexcept {
  Entry& entry = entries_[position];
  if (entry.newer != none) entries_[entry.newer].older = entry.older;
  if (entry.older != none) entries_[entry.older].newer = entry.newer;
  if (newest_ == position) newest_ = entry.older;
  if (oldest_ == position) oldest_ = entry.newer;
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
  for (Position position = 0; position < entries_.size(); ++position) {
    const Entry& entry = entries_[position];
    check(find(entry.key) == position, "a position is not found by its key");
    check((entry.pinned() ? entry.older : 0) == pins[position], "a position has other pins than candidates");
    pinned += entry.pinned();
  }
  check(table_.count() == entries_.size(), "the table has another number of positions");
  table_.check_invariants([this](Position position) { return mixed_hash(entries_[position].key); });
  std::size_t listed = 0;
  Position newer = none;
  for (Position position = newest_; position != none && listed <= entries_.size();
       position = entries_[position].older) {
    check(entries_[position].newer == newer && !entries_[position].pinned(), "the list of ages is broken");
    newer = position;
    ++listed;
  }
  check(oldest_ == newer && listed + pinned == entries_.size(), "a position is neither pinned nor in the list of ages");
}

}  // namespace stateport
