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
  /// Indices in closed pages that are not used: they do not count as available.
  [[nodiscard]] std::int64_t closed() const noexcept { return closed_pages_ * page_size_; }
  /// The page is not used; it may be closed. False for page 0 and a page that does not exist.
  [[nodiscard]] bool is_free(std::int32_t page) const noexcept {
    return page >= 1 && page <= pages() && (state_[static_cast<std::size_t>(page)] & used_bit) == 0;
  }

  /// The page is closed; it may be used. False for page 0 and a page that does not exist.
  [[nodiscard]] bool is_closed(std::int32_t page) const noexcept {
    return page >= 1 && page <= pages() && (state_[static_cast<std::size_t>(page)] & closed_bit) != 0;
  }

  /// Fills `out` with the first indices of ceil(out.size() / page_size) pages, or changes nothing and returns false.
  [[nodiscard]] bool allocate(std::span<KvIndex> out) noexcept;

  /// Gives back every page that an index of `indices` lies in, in order of first appearance. Throws InvalidArgument
  /// (nothing released) for an index out of range or in a free page.
  void release(std::span<const KvIndex> indices);

  /// No page of the ranges is handed out until open() names it: neither those that are free, nor those in use once they
  /// are released. Page 0 may be among them. Throws InvalidArgument, and changes nothing, for a range that is not
  /// inside the pool, and a page that is closed or named twice. O(free pages), for all ranges together.
  void close(std::span<const NumberRange> ranges);
  /// The pages of the range can be handed out again; free ones come last, in ascending order. Throws as close() does,
  /// for a page that is not closed.
  void open(std::int32_t first, std::int32_t count);

  /// All pages that are not closed are free, in ascending order.
  void reset() noexcept;
  /// Throws std::logic_error naming the first broken invariant. O(pages).
  void check_invariants() const;

 private:
  static constexpr std::uint8_t used_bit = 1;  ///< of a page's state
  static constexpr std::uint8_t closed_bit = 2;

  [[nodiscard]] std::int64_t pages() const noexcept { return static_cast<std::int64_t>(ring_.size()); }
  [[nodiscard]] std::int32_t& ring_at(std::int64_t position) noexcept {
    return ring_[static_cast<std::size_t>((first_ + position) % pages())];
  }
  [[nodiscard]] std::uint8_t& state(std::int32_t page) noexcept { return state_[static_cast<std::size_t>(page)]; }
  void mark_closed(const NumberRange& range, bool closed) noexcept;
  void require_pages(const NumberRange& range, bool closed) const;

  std::int32_t page_size_;
  std::vector<std::int32_t> ring_;   ///< free pages at positions [first_, first_ + free_pages_) modulo its size
  std::vector<std::uint8_t> state_;  ///< by page number: bits, or 0 if it is free
  std::int64_t first_ = 0;
  std::int64_t free_pages_ = 0;
  std::int64_t closed_pages_ = 0;
};

}  // namespace stateport
