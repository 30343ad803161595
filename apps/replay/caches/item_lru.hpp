// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::replay {

/// Blocks of KV and states as separate items of one list, least recently touched first, under one byte budget. For
/// indexes by block, where any item can go alone. Items are numbers below a count that may grow. Every operation is
/// O(1). Not thread-safe.
class ItemLru {
 public:
  using Item = std::uint32_t;
  static constexpr Item none = UINT32_MAX;

  /// Throws InvalidArgument for budget_bytes < 0.
  explicit ItemLru(std::int64_t budget_bytes, std::size_t reserve_items = 0);

  /// Makes the item the most recent one; adds it if absent. `bytes` >= 0 are those of its first touch.
  void touch(Item item, std::int64_t bytes);
  [[nodiscard]] bool contains(Item item) const noexcept { return item < items_.size() && items_[item].bytes != absent; }
  [[nodiscard]] bool over_budget() const noexcept { return used_bytes_ > budget_bytes_; }
  [[nodiscard]] std::int64_t used_bytes() const noexcept { return used_bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Removes and answers the least recent item; none if there is none.
  Item evict() noexcept;

  /// Throws std::logic_error naming the first violation. O(n).
  void check_invariants() const;

 private:
  static constexpr std::int64_t absent = -1;
  struct Links {
    Item newer = none;
    Item older = none;
    std::int64_t bytes = absent;
  };
  void unlink(Item item) noexcept;

  std::vector<Links> items_;
  Item newest_ = none;
  Item oldest_ = none;
  std::size_t size_ = 0;
  std::int64_t used_bytes_ = 0;
  std::int64_t budget_bytes_;
};

}  // namespace stateport::replay
