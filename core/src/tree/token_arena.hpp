// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "containers/table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Tokens and KV indices of all segments: two parallel arrays of pages. A segment is a run of pages that stays where
/// it is; a part of a run can be released alone, so that splitting a segment moves nothing.
///
/// Free runs are merged with their neighbours and kept in lists by size class (powers of two, first fit inside the
/// class of the request, any run of a larger class). A free run has its length in `free_pages_` at both ends and its
/// list links in its own first page. All operations are O(1) but growth.
///
/// With `pages_max` the arena never has more pages, and reserve_run() allocates nothing: the constructor reserves
/// address space for all pages, which the system backs with memory on first use.
class TokenArena {
 public:
  struct Run {
    std::uint32_t first_page = 0;
    std::uint32_t pages = 0;
  };

  /// `reserve_pages` are there from the start. pages_max 0: no limit.
  TokenArena(std::int32_t page_size, std::size_t reserve_pages, std::size_t pages_max);

  /// Makes sure that one allocate(pages) gets a run of this length, unless that takes more than pages_max. Without a
  /// limit it may move the arrays.
  void reserve_run(std::uint32_t pages);
  /// A run of `pages` pages, or a shorter one if none is as long. Precondition: reserve_run(pages) since the last
  /// allocate; with pages_max: a page is free.
  [[nodiscard]] Run allocate(std::uint32_t pages) noexcept;
  void release(std::uint32_t first_page, std::uint32_t pages) noexcept;
  void clear() noexcept;

  [[nodiscard]] Token* tokens(std::uint32_t page) noexcept { return tokens_.data() + offset(page); }
  [[nodiscard]] const Token* tokens(std::uint32_t page) const noexcept { return tokens_.data() + offset(page); }
  [[nodiscard]] KvIndex* kv(std::uint32_t page) noexcept { return kv_.data() + offset(page); }
  [[nodiscard]] const KvIndex* kv(std::uint32_t page) const noexcept { return kv_.data() + offset(page); }
  [[nodiscard]] const void* run_mark(std::uint32_t page) const noexcept { return free_pages_.data() + page; }
  /// Pages that there are, used or free.
  [[nodiscard]] std::uint32_t capacity_pages() const noexcept { return static_cast<std::uint32_t>(free_pages_.size()); }

  /// Throws std::logic_error unless free runs and lists agree and exactly `used[page]` pages are in use. O(pages).
  void check_invariants(const std::vector<bool>& used) const;

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr int first_fit_tries = 8;
  static constexpr std::size_t size_classes = 32;

  [[nodiscard]] std::size_t offset(std::uint32_t page) const noexcept {
    return std::size_t{page} * static_cast<std::size_t>(page_size_);
  }
  [[nodiscard]] std::uint32_t next(std::uint32_t page) const noexcept;
  [[nodiscard]] std::uint32_t previous(std::uint32_t page) const noexcept;
  void set_next(std::uint32_t page, std::uint32_t next) noexcept;
  void set_previous(std::uint32_t page, std::uint32_t previous) noexcept;
  [[nodiscard]] std::uint32_t find_run(std::uint32_t pages) const noexcept;
  void link(std::uint32_t page, std::uint32_t pages) noexcept;
  void unlink(std::uint32_t page) noexcept;

  std::int32_t page_size_;
  std::size_t pages_max_;
  Table<Token> tokens_;
  Table<KvIndex> kv_;
  Table<std::uint32_t> free_pages_;  ///< length of the free run that begins or ends here, else 0
  std::array<std::uint32_t, size_classes> heads_;
  std::uint32_t classes_with_runs_ = 0;  ///< bit per size class
};

}  // namespace stateport::detail
