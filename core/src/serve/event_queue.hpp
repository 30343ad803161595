// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// Events in order of their numbers, until they are taken. Has room for at most 4 times as many as ever waited together
/// with those that were prepared for: then it allocates no more. After prepare(n) n events need no allocation.
class EventQueue {
 public:
  explicit EventQueue(bool on) : on_(on) {}

  [[nodiscard]] bool on() const noexcept { return on_; }
  void prepare(std::size_t count) {
    if (!on_ || count <= events_.capacity() - events_.size()) return;
    const std::size_t waiting = events_.size() - taken_;
    const auto first = events_.begin() + static_cast<std::ptrdiff_t>(taken_);
    // Room is used again when at least as many were taken as are moved: each event costs O(1).
    if (waiting + count <= events_.capacity() && taken_ >= waiting) {
      events_.erase(events_.begin(), first);
    } else {
      std::vector<CacheEvent> larger;
      larger.reserve(std::max(waiting + count, 2 * events_.capacity()));
      larger.assign(first, events_.end());
      events_ = std::move(larger);
    }
    taken_ = 0;
  }
  /// Numbers the event; without effect if events are off.
  void push(CacheEvent event) {
    if (!on_) return;
    event.sequence = ++last_;
    events_.push_back(event);
  }
  std::size_t take(std::span<CacheEvent> out) {
    const std::size_t count = std::min(out.size(), events_.size() - taken_);
    const auto from = events_.begin() + static_cast<std::ptrdiff_t>(taken_);
    std::copy(from, from + static_cast<std::ptrdiff_t>(count), out.begin());
    taken_ += count;
    if (taken_ < events_.size()) return count;
    events_.clear();
    taken_ = 0;
    return count;
  }

 private:
  bool on_;
  std::uint64_t last_ = 0;
  std::vector<CacheEvent> events_;
  std::size_t taken_ = 0;
};

}  // namespace stateport::detail
