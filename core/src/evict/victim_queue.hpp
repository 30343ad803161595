// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/victim_heap.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace stateport {

/// Finds the next victim like VictimHeap, with the same rules for the owner and the same order, smallest (key, index)
/// first, for keys that are ticks: nearly every push has the largest key so far. Those are appended to a queue, whose
/// head is the oldest; a group of equal keys is sorted by index when it reaches the head. Only a push out of order goes
/// to a heap. So with 10⁶ candidates an eviction reads memory in order instead of walking a heap deeper than the
/// caches.
///
/// push, update, erase: O(1) amortised in order of ticks, else O(log n). top: O(1) amortised over touches and locks,
/// plus O(g log g) once per group of g equal keys. No allocation after reserve().
class VictimQueue {
 public:
  using Key = std::int64_t;

  /// Room for indices 0 … capacity - 1.
  void reserve(std::size_t capacity) {
    heap_.reserve(capacity);
    places_.resize(capacity);
    // As many dead entries as live ones at most: making room then costs O(1) per push.
    room_ = 2 * capacity;
    queue_.reserve(room_);
  }

  [[nodiscard]] bool contains(std::uint32_t index) const noexcept { return queued(index) || heaped(index); }

  /// Adds a candidate; without effect if it is already there (a grown key is found by top()).
  void push(std::uint32_t index, Key key) {
    if (contains(index)) return;
    if (head_ == queue_.size()) clear_queue();
    // The head's group is sorted already: a late member would be out of order.
    const bool in_order =
        queue_.empty() || key > queue_.back().key || (key == queue_.back().key && sorted_end_ < queue_.size());
    if (!in_order) {
      places_[index].position = in_heap;
      return heap_.push(index, key);
    }
    if (queue_.size() == room_) drop_dead_entries();
    places_[index] = {key, static_cast<std::uint32_t>(queue_.size())};
    queue_.push_back({key, index});
  }

  /// Tells of a smaller key; a larger one is found by top(). Adds the candidate if absent.
  void update(std::uint32_t index, Key key) {
    if (heaped(index)) return heap_.update(index, key);
    if (queued(index)) {
      if (key >= places_[index].key) return;
      places_[index].position = absent;
    }
    push(index, key);
  }

  /// A hint that the index will soon be pushed, updated or erased.
  void prefetch(std::uint32_t index) const noexcept { detail::prefetch(&places_[index]); }

  /// Without effect if absent.
  void erase(std::uint32_t index) {
    if (heaped(index)) heap_.erase(index);
    places_[index].position = absent;
  }

  /// The eligible candidate with the smallest (key, index), which stays; none if there is none. As VictimHeap::top().
  template <class Eligible, class KeyOf>
  [[nodiscard, gnu::always_inline]] std::optional<std::uint32_t> top(Eligible&& eligible, KeyOf&& key_of) {
    if (const auto soon = upcoming(2 * detail::prefetch_distance)) prefetch(*soon);
    settle_head(eligible, key_of);
    if (heap_.size() == 0) return upcoming(0);
    const auto other = heap_.top(eligible, key_of);
    if (head_ == queue_.size()) return other;
    const Entry& first = queue_[head_];
    if (!other) return first.index;
    const Entry second{key_of(*other), *other};
    return first < second ? first.index : second.index;
  }

  /// A candidate that is likely to be on top after `ahead` erasures, for prefetching; none if the queue is shorter.
  [[nodiscard]] std::optional<std::uint32_t> upcoming(std::size_t ahead) const noexcept {
    return queue_.size() - head_ > ahead ? std::optional(queue_[head_ + ahead].index) : std::nullopt;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return heap_.bytes() + queue_.capacity() * sizeof(Entry) + places_.capacity() * sizeof(Place);
  }

  void clear() noexcept {
    heap_.clear();
    std::ranges::fill(places_, Place{});
    clear_queue();
  }

  /// Throws std::logic_error naming the first broken invariant. O(n).
  void check_invariants() const {
    heap_.check_invariants();
    for (std::size_t index = 0; index < places_.size(); ++index) {
      if (!queued(static_cast<std::uint32_t>(index))) continue;
      require_invariant(places_[index].position >= head_ && places_[index].position < queue_.size(), "VictimQueue",
                        "a position is outside the queue");
      const Entry& entry = queue_[places_[index].position];
      require_invariant(entry.index == index, "VictimQueue", "a position names another entry");
      require_invariant(entry.key == places_[index].key, "VictimQueue", "a candidate has two keys");
      require_invariant(!heap_.contains(static_cast<std::uint32_t>(index)), "VictimQueue",
                        "a candidate is there twice");
    }
    const Entry* before = nullptr;
    for (std::size_t at = head_; at < queue_.size(); ++at) {
      require_invariant(at == head_ || queue_[at - 1].key <= queue_[at].key, "VictimQueue",
                        "the queue is not in order of keys");
      if (!live(at)) continue;
      require_invariant(before == nullptr || at >= sorted_end_ || *before < queue_[at], "VictimQueue",
                        "the head's group is not sorted");
      before = &queue_[at];
    }
  }

 private:
  static constexpr std::uint32_t absent = UINT32_MAX;
  static constexpr std::uint32_t in_heap = UINT32_MAX - 1;  // or was: the heap drops candidates that are not eligible

  struct Place {
    Key key = 0;                      ///< of the entry, so that an update need not look there
    std::uint32_t position = absent;  ///< in queue_, or absent, or in_heap
  };
  struct Entry {
    Key key;
    std::uint32_t index;
    friend bool operator<(const Entry& a, const Entry& b) noexcept {
      return a.key != b.key ? a.key < b.key : a.index < b.index;
    }
  };

  [[nodiscard]] bool queued(std::uint32_t index) const noexcept { return places_[index].position < in_heap; }
  [[nodiscard]] bool heaped(std::uint32_t index) const noexcept {
    return places_[index].position == in_heap && heap_.contains(index);
  }
  [[nodiscard]] bool live(std::size_t at) const noexcept { return places_[queue_[at].index].position == at; }

  void clear_queue() noexcept {
    queue_.clear();
    head_ = sorted_end_ = 0;
  }

  /// Advances the head to a live, eligible entry whose key is up to date.
  template <class Eligible, class KeyOf>
  void settle_head(Eligible&& eligible, KeyOf&& key_of) {
    while (head_ < queue_.size()) {
      if (!live(head_)) {
        ++head_;
        continue;
      }
      if (head_ >= sorted_end_) sort_group();
      const Entry first = queue_[head_];
      const bool keep = eligible(first.index);
      const Key now = keep ? key_of(first.index) : first.key;
      STATEPORT_ASSERT(!(now < first.key));
      if (keep && now == first.key) return;
      places_[first.index].position = absent;
      ++head_;
      if (keep) push(first.index, now);
    }
  }

  /// Sorts the entries that share the head's key. Dead ones among them may move; live ones learn their new position.
  void sort_group() {
    const auto begin = queue_.begin() + static_cast<std::ptrdiff_t>(head_);
    const Key key = begin->key;
    auto end = begin;
    std::size_t kept = head_;
    // Dead entries are recognised by position, so they go first.
    for (; end != queue_.end() && end->key == key; ++end) {
      const auto at = static_cast<std::size_t>(end - queue_.begin());
      if (live(at)) {
        std::swap(queue_[kept], *end);
        places_[queue_[kept].index].position = static_cast<std::uint32_t>(kept);
        ++kept;
      }
    }
    const auto live_end = queue_.begin() + static_cast<std::ptrdiff_t>(kept);
    std::sort(begin, live_end);
    for (auto entry = begin; entry != live_end; ++entry)
      places_[entry->index].position = static_cast<std::uint32_t>(entry - queue_.begin());
    sorted_end_ = static_cast<std::size_t>(end - queue_.begin());
  }

  /// Moves the live entries to the front of the storage.
  void drop_dead_entries() {
    std::size_t kept = 0;
    std::size_t kept_sorted = 0;
    for (std::size_t at = head_; at < queue_.size(); ++at) {
      if (at == sorted_end_) kept_sorted = kept;
      if (!live(at)) continue;
      queue_[kept] = queue_[at];
      places_[queue_[kept].index].position = static_cast<std::uint32_t>(kept);
      ++kept;
    }
    sorted_end_ = sorted_end_ >= queue_.size() ? kept : sorted_end_ > head_ ? kept_sorted : 0;
    queue_.resize(kept);
    head_ = 0;
  }

  VictimHeap<Key> heap_;  ///< candidates that were pushed out of order
  Table<Entry> queue_;    ///< ascending in key from head_ on; an entry is dead unless its position says so
  Table<Place> places_;   ///< by index
  std::size_t head_ = 0;
  std::size_t sorted_end_ = 0;  ///< the head's group ends here and is sorted by index, if it is past head_
  std::size_t room_ = 0;
};

}  // namespace stateport
