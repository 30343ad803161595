// SPDX-License-Identifier: Apache-2.0
#include "tree/token_arena.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>

namespace stateport::detail {
namespace {

std::uint32_t size_class(std::uint32_t pages) noexcept {
  return 31U - static_cast<std::uint32_t>(std::countl_zero(pages | 1U));
}

}  // namespace

TokenArena::TokenArena(std::int32_t page_size, std::size_t reserve_pages, std::size_t pages_max)
    : page_size_(page_size), pages_max_(pages_max) {
  heads_.fill(none);
  if (pages_max > 0) {
    require(pages_max < none, "pages", static_cast<std::int64_t>(pages_max), "too many pages for one tree");
    const std::size_t elements = pages_max * static_cast<std::size_t>(page_size);
    tokens_.reserve(elements);
    kv_.reserve(elements);
    free_pages_.reserve(pages_max);
  }
  if (reserve_pages > 0) reserve_run(static_cast<std::uint32_t>(reserve_pages));
}

std::uint32_t TokenArena::next(std::uint32_t page) const noexcept {
  return static_cast<std::uint32_t>(*tokens(page));
}
std::uint32_t TokenArena::previous(std::uint32_t page) const noexcept {
  return static_cast<std::uint32_t>(*kv(page));
}
void TokenArena::set_next(std::uint32_t page, std::uint32_t next) noexcept {
  *tokens(page) = static_cast<Token>(next);
}
void TokenArena::set_previous(std::uint32_t page, std::uint32_t previous) noexcept {
  *kv(page) = static_cast<KvIndex>(previous);
}

void TokenArena::link(std::uint32_t page, std::uint32_t pages) noexcept {
  std::uint32_t& head = heads_[size_class(pages)];
  free_pages_[page] = pages;
  free_pages_[page + pages - 1] = pages;
  set_next(page, head);
  set_previous(page, none);
  if (head != none) set_previous(head, page);
  head = page;
  classes_with_runs_ |= 1U << size_class(pages);
}

void TokenArena::unlink(std::uint32_t page) noexcept {
  const std::uint32_t pages = free_pages_[page];
  const std::uint32_t after = next(page);
  const std::uint32_t before = previous(page);
  if (after != none) set_previous(after, before);
  if (before != none) {
    set_next(before, after);
  } else {
    heads_[size_class(pages)] = after;
    if (after == none) classes_with_runs_ &= ~(1U << size_class(pages));
  }
  free_pages_[page] = 0;
  free_pages_[page + pages - 1] = 0;
}

std::uint32_t TokenArena::find_run(std::uint32_t pages) const noexcept {
  const std::uint32_t own = size_class(pages);
  std::uint32_t run = heads_[own];
  for (int tries = 0; run != none && tries < first_fit_tries; ++tries) {
    if (free_pages_[run] >= pages) return run;
    run = next(run);
  }
  if (own + 1 == size_classes) return none;
  const std::uint32_t larger = classes_with_runs_ & ~((2U << own) - 1);
  return larger == 0 ? none : heads_[static_cast<std::size_t>(std::countr_zero(larger))];
}

void TokenArena::reserve_run(std::uint32_t pages) {
  if (find_run(pages) != none) return;
  const std::uint32_t held = capacity_pages();
  // Half as much again keeps growth amortised; the new run is long enough whatever precedes it.
  std::uint64_t total = std::uint64_t{held} + std::max<std::uint64_t>(pages, held / 2);
  if (pages_max_ > 0) total = std::min<std::uint64_t>(total, pages_max_);
  if (total == held) return;
  require(total < none, "pages", static_cast<std::int64_t>(total), "too many pages for one tree");
  const std::size_t elements = static_cast<std::size_t>(total) * static_cast<std::size_t>(page_size_);
  tokens_.reserve(elements);
  kv_.reserve(elements);
  free_pages_.resize(static_cast<std::size_t>(total), 0);
  tokens_.resize(elements);
  kv_.resize(elements);
  release(held, static_cast<std::uint32_t>(total) - held);
}

TokenArena::Run TokenArena::allocate(std::uint32_t pages) noexcept {
  std::uint32_t run = find_run(pages);
  if (run == none) run = heads_[size_class(classes_with_runs_)];  // of the longest class
  const std::uint32_t length = free_pages_[run];
  unlink(run);
  if (length > pages) link(run + pages, length - pages);
  return {run, std::min(length, pages)};
}

void TokenArena::release(std::uint32_t first_page, std::uint32_t pages) noexcept {
  if (first_page > 0 && free_pages_[first_page - 1] != 0) {
    const std::uint32_t before = free_pages_[first_page - 1];
    unlink(first_page - before);
    first_page -= before;
    pages += before;
  }
  const std::uint32_t after = first_page + pages;
  if (after < capacity_pages() && free_pages_[after] != 0) {
    const std::uint32_t length = free_pages_[after];
    unlink(after);
    pages += length;
  }
  link(first_page, pages);
}

void TokenArena::clear() noexcept {
  heads_.fill(none);
  classes_with_runs_ = 0;
  std::ranges::fill(free_pages_, 0);
  if (capacity_pages() > 0) link(0, capacity_pages());
}

void TokenArena::check_invariants(const std::vector<bool>& used) const {
  constexpr const char* structure = "TokenArena";
  std::uint32_t runs = 0;
  for (std::uint32_t page = 0; page < capacity_pages();) {
    const std::uint32_t length = free_pages_[page];
    require_invariant(used[page] == (length == 0), structure, "a page is used and free, or neither");
    if (length == 0) {
      ++page;
      continue;
    }
    ++runs;
    require_invariant(free_pages_[page + length - 1] == length, structure, "the ends of a free run differ");
    for (std::uint32_t inside = page; inside < page + length; ++inside)
      require_invariant(!used[inside], structure, "a page of a free run is used");
    page += length;
    require_invariant(page == capacity_pages() || used[page], structure, "two free runs were not merged");
  }
  for (std::uint32_t bin = 0; bin < size_classes; ++bin) {
    require_invariant((heads_[bin] != none) == ((classes_with_runs_ >> bin & 1U) != 0), structure,
                      "the bit of a size class is wrong");
    for (std::uint32_t run = heads_[bin]; run != none; run = next(run), --runs)
      require_invariant(runs > 0 && free_pages_[run] != 0 && size_class(free_pages_[run]) == bin, structure,
                        "a list names a run of another class");
  }
  require_invariant(runs == 0, structure, "a free run is in no list");
}

}  // namespace stateport::detail
