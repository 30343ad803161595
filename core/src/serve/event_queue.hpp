// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/serve/request_types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Events in the order of their numbers until they are taken, at most `capacity` of them: then the oldest is lost, and
/// the numbers have a gap. Only reserve() allocates. Memory is touched only for places that held an event.
class EventQueue {
 public:
  /// Precondition: the queue is empty.
  void reserve(std::size_t capacity) {
    ring_.reserve(capacity);
    capacity_ = capacity;
  }
  /// Numbers the event. Precondition: a capacity.
  void push(CacheEvent event) noexcept {
    event.sequence = ++last_;
    if (count_ == capacity_) drop(1);
    const std::size_t at = place(count_++);
    if (at == ring_.size())
      ring_.push_back(event);
    else
      ring_[at] = event;
  }
  std::size_t take(std::span<CacheEvent> out) noexcept {
    const std::size_t count = std::min(out.size(), count_);
    for (std::size_t i = 0; i < count; ++i) out[i] = ring_[place(i)];
    drop(count);
    return count;
  }

 private:
  [[nodiscard]] std::size_t place(std::size_t i) const noexcept {
    return i < capacity_ - first_ ? first_ + i : i - (capacity_ - first_);
  }
  /// The oldest ones. An empty queue begins at the front again, in memory that has been used.
  void drop(std::size_t count) noexcept {
    count_ -= count;
    first_ = count_ == 0 ? 0 : place(count);
  }

  std::vector<CacheEvent> ring_;
  std::size_t capacity_ = 0;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace stateport::detail
