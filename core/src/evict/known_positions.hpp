// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>

#include "containers/hash_index.hpp"
#include "containers/table.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// The positions of prompts that are known, by key and in the order of their last use. A position is a number below
/// size(). If there is no room, the longest unused position is forgotten for another one.
///
///     in the list ── pin ──► pinned (counts) ── unpin, as often ──► in the list, the newest
///
/// Nothing allocates after construction. O(1), but for check_invariants().
class KnownPositions {
 public:
  using Position = std::uint32_t;
  static constexpr Position none = UINT32_MAX;

  explicit KnownPositions(std::size_t capacity);

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool is_full() const noexcept { return entries_.size() == capacity_; }
  [[nodiscard]] Position find(PositionKey key) const noexcept;
  /// Precondition: not full, and the key is not known.
  Position add(PositionKey key) noexcept;
  /// The longest unused position that is not pinned; none if all are.
  [[nodiscard]] Position oldest() const noexcept { return oldest_; }
  /// The position has another key from now on, which is not known. Precondition: it is not pinned.
  void replace(Position position, PositionKey key) noexcept;
  /// The position was used now.
  void use(Position position) noexcept;
  /// A pinned position is not forgotten until it is unpinned as often.
  void pin(Position position) noexcept;
  void unpin(Position position) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return entries_.capacity() * sizeof(Entry) + table_.bytes(); }
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

  void leave_list(Position position) noexcept;

  std::size_t capacity_;
  Table<Entry> entries_;
  detail::HashIndex table_{80};  ///< position by key
  Position newest_ = none;
  Position oldest_ = none;
};

}  // namespace stateport
