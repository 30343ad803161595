// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stateport {

/// Finds the next victim of an eviction: a 4-ary min-heap of candidate indices (blocks, nodes), smallest (key, index)
/// first, so the order is total. It is lazy: a candidate's key may grow (a touch) and a candidate may become ineligible
/// (a lock) without telling the heap; both are noticed when the entry reaches the top. So a touch costs nothing here,
/// and victim choice never scans locked candidates: an ineligible entry is dropped once and comes back with the push()
/// of its unlock.
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
    entries_.reserve(first + capacity);
    entries_.resize(std::max(entries_.size(), first));
    position_.resize(capacity, absent);
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size() - first; }
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
    while (size() > 0) {
      Entry& smallest = entries_[first];
      if (!eligible(smallest.index)) {
        erase(smallest.index);
        continue;
      }
      const Key now = key_of(smallest.index);
      if (!(smallest.key < now)) {
        STATEPORT_ASSERT(!(now < smallest.key));
        return smallest.index;
      }
      smallest.key = now;
      sift_down(first);
    }
    return std::nullopt;
  }

  /// The smallest entry as the heap last knew it: probably the next top(). None if empty.
  [[nodiscard]] std::optional<std::uint32_t> upcoming() const noexcept {
    return size() == 0 ? std::nullopt : std::optional(entries_[first].index);
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return entries_.capacity() * sizeof(Entry) + position_.capacity() * sizeof(std::uint32_t);
  }

  void clear() noexcept {
    for (std::size_t i = first; i < entries_.size(); ++i) position_[entries_[i].index] = absent;
    entries_.resize(first);
  }

  /// Throws std::logic_error unless positions and heap order hold. O(n).
  void check_invariants() const {
    std::size_t present = 0;
    for (const std::uint32_t position : position_) present += position != absent;
    require_invariant(present == size(), "VictimHeap", "positions and entries differ in number");
    for (std::size_t i = first; i < entries_.size(); ++i) {
      require_invariant(position_[entries_[i].index] == i, "VictimHeap", "an entry is not where its position says");
      require_invariant(i == first || !(entries_[i] < entries_[parent_of(i)]), "VictimHeap",
                        "an entry is smaller than its parent");
    }
  }

 private:
  static constexpr std::uint32_t absent = UINT32_MAX;
  /// The children of one entry fill a cache line, for entries of 16 bytes: entry i has them at 4 (i - 2) … 4 (i - 2) +
  /// 3, so the smallest entry stands at 3 and the entries before it are not used.
  static constexpr std::size_t arity = 4;
  static constexpr std::size_t first = arity - 1;

  [[nodiscard]] static constexpr std::size_t parent_of(std::size_t entry) noexcept { return entry / arity + first - 1; }
  [[nodiscard]] static constexpr std::size_t children_of(std::size_t entry) noexcept {
    return (entry - first + 1) * arity;
  }

  struct Entry {
    Key key;
    std::uint32_t index;
    friend bool operator<(const Entry& a, const Entry& b) {
      if (a.key < b.key) return true;
      if (b.key < a.key) return false;
      return a.index < b.index;
    }
  };

  void place(std::size_t position, const Entry& entry) {
    entries_[position] = entry;
    position_[entry.index] = static_cast<std::uint32_t>(position);
  }

  void sift_up(std::size_t hole) {
    const Entry moving = entries_[hole];
    while (hole > first) {
      const std::size_t parent = parent_of(hole);
      if (!(moving < entries_[parent])) break;
      place(hole, entries_[parent]);
      hole = parent;
    }
    place(hole, moving);
  }

  void sift_down(std::size_t hole) {
    const Entry moving = entries_[hole];
    for (;;) {
      const std::size_t begin = children_of(hole);
      if (begin >= entries_.size()) break;
      // A heap of a million entries is deeper than the caches: the next level comes while this one is compared.
      const std::size_t grandchildren = children_of(begin);
      if (grandchildren < entries_.size())
        for (std::size_t child = 0; child < arity; ++child)
          detail::prefetch(entries_.data() + grandchildren + child * arity);
      const std::size_t end = std::min(begin + arity, entries_.size());
      std::size_t smallest = begin;
      for (std::size_t child = begin + 1; child < end; ++child)
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
