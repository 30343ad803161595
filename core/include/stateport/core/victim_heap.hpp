// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <stateport/core/assert.hpp>
#include <stateport/core/error.hpp>
#include <stateport/core/table.hpp>

namespace stateport {

/// Finds the next victim of an eviction: a 4-ary min-heap of candidate indices (blocks, nodes), smallest (key, index)
/// first, so the order is total. It is lazy: a candidate's key may grow (a touch) and a candidate may become
/// ineligible (a lock) without telling the heap; both are noticed when the entry reaches the top. So a touch costs
/// nothing here, and victim choice never scans what is locked: an ineligible entry is dropped once and comes back
/// with the push() of its unlock.
///
/// Rules for the owner: push() when an index becomes eligible (twice is harmless); update() when a key gets smaller;
/// a key that grows needs no call. Key is any totally ordered value.
///
/// push, update, erase: O(log n). top: O(log n) amortised over touches and locks. No allocation after construction.
template <class Key>
class VictimHeap {
 public:
  /// Room for indices 0 … capacity - 1.
  explicit VictimHeap(std::size_t capacity = 0) { reserve(capacity); }

  void reserve(std::size_t capacity) {
    entries_.reserve(capacity);
    position_.resize(capacity, absent);
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool contains(std::uint32_t index) const noexcept { return position_[index] != absent; }

  /// Adds a candidate; without effect if it is already there (a grown key is found by top()).
  void push(std::uint32_t index, const Key& key) {
    if (contains(index)) return;
    position_[index] = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back({key, index});
    sift_up(position_[index]);
  }

  /// Sets the key of a candidate, smaller or larger; adds it if absent.
  void update(std::uint32_t index, const Key& key) {
    if (!contains(index)) return push(index, key);
    entries_[position_[index]].key = key;
    sift_up(position_[index]);
    sift_down(position_[index]);
  }

  /// Without effect if absent.
  void erase(std::uint32_t index) {
    if (!contains(index)) return;
    const std::uint32_t hole = position_[index];
    position_[index] = absent;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) return;
    place(hole, last);
    sift_up(hole);
    sift_down(position_[last.index]);
  }

  /// The eligible candidate with the smallest (key, index), which stays in the heap; none if there is none.
  /// `eligible(index)` and `key_of(index)` give the state of affairs now; a key never got smaller unnoticed.
  template <class Eligible, class KeyOf>
  [[nodiscard]] std::optional<std::uint32_t> top(Eligible&& eligible, KeyOf&& key_of) {
    while (!entries_.empty()) {
      Entry& first = entries_.front();
      if (!eligible(first.index)) {
        erase(first.index);
        continue;
      }
      const Key now = key_of(first.index);
      if (!(first.key < now)) {
        STATEPORT_ASSERT(!(now < first.key));
        return first.index;
      }
      first.key = now;
      sift_down(0);
    }
    return std::nullopt;
  }

  /// The smallest entry as the heap last knew it: probably the next top(). None if empty.
  [[nodiscard]] std::optional<std::uint32_t> first() const noexcept {
    return entries_.empty() ? std::nullopt : std::optional(entries_.front().index);
  }

  void clear() noexcept {
    for (const Entry& entry : entries_) position_[entry.index] = absent;
    entries_.clear();
  }

  /// Throws std::logic_error unless positions and heap order hold. O(n).
  void check_invariants() const {
    std::size_t present = 0;
    for (const std::uint32_t position : position_) present += position != absent;
    require_invariant(present == entries_.size(), "VictimHeap", "positions and entries differ in number");
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      require_invariant(position_[entries_[i].index] == i, "VictimHeap", "an entry is not where its position says");
      require_invariant(i == 0 || !(entries_[i] < entries_[(i - 1) / arity]), "VictimHeap",
                        "an entry is smaller than its parent");
    }
  }

 private:
  static constexpr std::uint32_t absent = UINT32_MAX;
  static constexpr std::size_t arity = 4;  // one cache line of children for a 16-byte entry

  struct Entry {
    Key key;
    std::uint32_t index;
    friend bool operator<(const Entry& a, const Entry& b) {
      if (a.key < b.key) return true;
      if (b.key < a.key) return false;
      return a.index < b.index;
    }
  };

  static void prefetch([[maybe_unused]] const void* address) noexcept {
#ifdef __GNUC__
    __builtin_prefetch(address);
#endif
  }

  void place(std::size_t position, const Entry& entry) {
    entries_[position] = entry;
    position_[entry.index] = static_cast<std::uint32_t>(position);
  }

  void sift_up(std::size_t hole) {
    const Entry moving = entries_[hole];
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / arity;
      if (!(moving < entries_[parent])) break;
      place(hole, entries_[parent]);
      hole = parent;
    }
    place(hole, moving);
  }

  void sift_down(std::size_t hole) {
    const Entry moving = entries_[hole];
    for (;;) {
      const std::size_t first = hole * arity + 1;
      if (first >= entries_.size()) break;
      // A heap of a million entries is deeper than the caches: the next level comes while this one is compared.
      const std::size_t grandchildren = first * arity + 1;
      if (grandchildren < entries_.size())
        for (std::size_t child = 0; child < arity; ++child) prefetch(&entries_[0] + grandchildren + child * arity);
      const std::size_t last = std::min(first + arity, entries_.size());
      std::size_t smallest = first;
      for (std::size_t child = first + 1; child < last; ++child)
        if (entries_[child] < entries_[smallest]) smallest = child;
      if (!(entries_[smallest] < moving)) break;
      place(hole, entries_[smallest]);
      hole = smallest;
    }
    place(hole, moving);
  }

  Table<Entry> entries_;
  Table<std::uint32_t> position_;
};

}  // namespace stateport
