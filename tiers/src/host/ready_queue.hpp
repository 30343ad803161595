// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace stateport::tiers {

/// A queue whose room is made before it is needed: the call that accepts a request makes room for its answer.
template <class T>
class ReadyQueue {
 public:
  /// Makes room for this number of elements that are not handed out. Those that were may take as much again.
  void prepare(std::size_t count) {
    if (2 * count > elements_.capacity()) elements_.reserve(2 * std::max(count, elements_.capacity()));
  }
  /// Precondition: prepare().
  void push(const T& element) noexcept { elements_.push_back(element); }
  /// Not handed out.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size() - handed_out_; }
  /// Returns how many.
  std::size_t hand_out(std::span<T> out) noexcept {
    const std::size_t count = std::min(out.size(), size());
    std::copy_n(elements_.begin() + static_cast<std::ptrdiff_t>(handed_out_), count, out.begin());
    handed_out_ += count;
    if (2 * handed_out_ < elements_.size()) return count;
    elements_.erase(elements_.begin(), elements_.begin() + static_cast<std::ptrdiff_t>(handed_out_));
    handed_out_ = 0;
    return count;
  }

 private:
  std::vector<T> elements_;
  std::size_t handed_out_ = 0;
};

}  // namespace stateport::tiers
