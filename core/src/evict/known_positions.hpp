// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/evict/prompt_facts.hpp>

#include "containers/hash_index.hpp"
#include "containers/table.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// The positions of prompts that are known, by key and in the order of their last use. A position is a number below
/// size(). If there is no room, the longest unused position is forgotten for another one. Where tenants have shares,
/// none of a tenant that has no more of them than its floor's part is forgotten for another tenant.
///
///     in the list ── pin ──► pinned (counts) ── unpin, as often ──► in the list, the newest
///
/// Nothing allocates after construction and share(). O(1), but for check_invariants() and, where tenants have shares,
/// oldest(): O(accounts).
class KnownPositions {
 public:
  using Position = std::uint32_t;
  static constexpr Position none = UINT32_MAX;

  explicit KnownPositions(std::size_t capacity);
  /// Tenants have shares from now on. Precondition: nothing is known yet. `tenants` must outlive this.
  void share(const CandidateTenants& tenants);

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool is_full() const noexcept { return entries_.size() == capacity_; }
  [[nodiscard]] Position find(PositionKey key) const noexcept;
  /// Precondition: not full, and the key is not known.
  Position add(PositionKey key, std::uint8_t account = 0) noexcept;
  /// The longest unused position that is not pinned and may be forgotten for this account; none if there is none.
  [[nodiscard]] Position oldest(std::uint8_t account = 0) const noexcept;
  /// The position has another key from now on, which is not known. Precondition: it is not pinned.
  void replace(Position position, PositionKey key, std::uint8_t account = 0) noexcept;
  /// The position belongs to this account from now on.
  void give(Position position, std::uint8_t account) noexcept;
  /// The position was used now.
  void use(Position position) noexcept;
  /// A pinned position is not forgotten until it is unpinned as often.
  void pin(Position position) noexcept;
  void unpin(Position position) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept {
    return entries_.capacity() * sizeof(Entry) + owned_.capacity() * sizeof(Owned) + table_.bytes();
  }
  /// Throws std::logic_error naming the first violation, also if the pins differ from `pinned_by`. O(positions).
  void check_invariants(std::span<const Position> pinned_by) const;

 private:
  static constexpr Position pinned_mark = UINT32_MAX - 1;

  struct Entry {
    PositionKey key = 0;
    Position newer = none;  ///< in the list; pinned_mark: not in the list
    Position older = none;  ///< pinned: the number of pins
    [[nodiscard]] bool pinned() const noexcept { return newer == pinned_mark; }
  };

  /// Where tenants have shares.
  struct Owned {
    std::uint64_t used_tick = 0;
    std::uint8_t account = 0;
  };
  /// The positions of an account.
  struct Ages {
    Position newest = none;
    Position oldest = none;
    std::size_t count = 0;  ///< where tenants have shares; pinned ones, too
  };

  [[nodiscard]] Ages& ages(Position position) noexcept {
    return owned_.empty() ? ages_.front() : ages_[owned_[position].account];
  }
  void enter(Position position, std::uint8_t account) noexcept;
  void leave(Position position) noexcept;
  void leave_list(Position position) noexcept;
  void check_list(std::size_t account, std::size_t& listed) const;

  std::size_t capacity_;
  Table<Entry> entries_;
  detail::HashIndex table_{80};  ///< position by key
  std::vector<Ages> ages_;       ///< by account
  const CandidateTenants* tenants_ = nullptr;
  Table<Owned> owned_;  ///< by position, where tenants have shares
  std::uint64_t tick_ = 0;
};

}  // namespace stateport
