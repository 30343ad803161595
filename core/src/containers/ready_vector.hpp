// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace stateport::detail {

/// Makes room for `count` elements in all, at least doubling what was there: many small steps stay amortised.
template <class Vector>
void reserve_amortised(Vector& vector, std::size_t count) {
  if (count > vector.capacity()) vector.reserve(std::max(count, 2 * vector.capacity()));
}

/// A vector whose growth is in two steps: prepare() allocates and moves no element, so that pointers to them stay valid
/// if something else fails afterwards; then growth up to what was prepared does not fail.
template <class T>
class ReadyVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Makes room for `count` elements in all.
  void prepare(std::size_t count) {
    if (count > elements_.capacity()) reserve_amortised(larger_, std::max(count, 2 * elements_.capacity()));
  }
  /// Precondition for more elements than ever before: prepare().
  void resize(std::size_t count) {
    grow(count);
    elements_.resize(count);
  }
  void assign(std::size_t count, const T& value) {
    elements_.clear();
    grow(count);
    elements_.assign(count, value);
  }
  void push_back(const T& element) {
    grow(elements_.size() + 1);
    elements_.push_back(element);
  }
  void clear() noexcept { elements_.clear(); }

  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] bool empty() const noexcept { return elements_.empty(); }
  [[nodiscard]] T* data() noexcept { return elements_.data(); }
  [[nodiscard]] const T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return elements_[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return elements_[i]; }
  [[nodiscard]] T& back() noexcept { return elements_.back(); }
  [[nodiscard]] auto begin() noexcept { return elements_.begin(); }
  [[nodiscard]] auto end() noexcept { return elements_.end(); }
  [[nodiscard]] auto begin() const noexcept { return elements_.begin(); }
  [[nodiscard]] auto end() const noexcept { return elements_.end(); }

 private:
  void grow(std::size_t count) {
    if (count <= elements_.capacity() || count > larger_.capacity()) return;
    larger_.assign(elements_.begin(), elements_.end());
    elements_ = std::exchange(larger_, {});
  }

  std::vector<T> elements_;
  std::vector<T> larger_;  ///< prepared, without elements
};

}  // namespace stateport::detail
