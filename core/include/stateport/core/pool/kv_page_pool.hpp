// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// KV indices in pages: page p holds the indices p * page_size … (p + 1) * page_size - 1. Pages are numbered from 1
/// (index 0 is left to engines that pad with it) and handed out longest free first. Allocates nothing after
/// construction. Not thread-safe.
class KvPagePool {
 public:
  /// floor(indices / page_size) pages. Throws InvalidArgument for page_size < 1 or more than 2^31 - 1 indices.
  KvPagePool(std::int64_t indices, std::int32_t page_size);

  [[nodiscard]] std::int32_t page_size() const noexcept { return page_size_; }
  [[nodiscard]] std::int64_t capacity() const noexcept { return pages() * page_size_; }
  [[nodiscard]] std::int64_t available() const noexcept { return free_pages_ * page_size_; }

  /// Fills `out` with the first indices of ceil(out.size() / page_size) pages, or changes nothing and returns false.
  [[nodiscard]] bool allocate(std::span<KvIndex> out) noexcept;

  /// Gives back every page that an index of `indices` lies in, in order of first appearance. Throws InvalidArgument
  /// (nothing released) for an index out of range or in a free page.
  void release(std::span<const KvIndex> indices);

  /// All pages are free, in ascending order.
  void reset() noexcept;
  /// Throws std::logic_error naming the first broken invariant. O(pages).
  void check_invariants() const;

 private:
  [[nodiscard]] std::int64_t pages() const noexcept { return static_cast<std::int64_t>(ring_.size()); }

  std::int32_t page_size_;
  std::vector<std::int32_t> ring_;  ///< free pages at positions [first_, first_ + free_pages_) modulo its size
  std::vector<std::uint8_t> used_;  ///< by page number
  std::int64_t first_ = 0;
  std::int64_t free_pages_ = 0;
};

}  // namespace stateport
