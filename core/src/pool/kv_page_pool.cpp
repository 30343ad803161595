// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/kv_page_pool.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <utility>

namespace stateport {

KvPagePool::KvPagePool(std::int64_t indices, std::int32_t page_size) : page_size_(page_size) {
  require(page_size >= 1, "page_size", page_size, "must be at least 1");
  require(indices >= 0 && indices <= INT32_MAX - page_size, "indices", indices, "must fit 32-bit indices");
  ring_.resize(static_cast<std::size_t>(indices / page_size));
  state_.resize(ring_.size() + 1, State::free);
  reset();
}

void KvPagePool::reset() noexcept {
  first_ = 0;
  free_pages_ = 0;
  for (std::int32_t page = 1; page <= pages(); ++page) {
    State& state = state_[static_cast<std::size_t>(page)];
    if (state == State::used_and_closed) ++closed_pages_;
    if (state == State::closed || state == State::used_and_closed) {
      state = State::closed;
      continue;
    }
    state = State::free;
    ring_[static_cast<std::size_t>(free_pages_++)] = page;
  }
}

bool KvPagePool::allocate(std::span<KvIndex> out) noexcept {
  const auto count = static_cast<std::int64_t>(out.size());
  if ((count + page_size_ - 1) / page_size_ > free_pages_) return false;
  for (std::int64_t done = 0; done < count;) {
    const std::int32_t page = ring_[static_cast<std::size_t>(first_)];
    state_[static_cast<std::size_t>(page)] = State::used;
    first_ = first_ + 1 == pages() ? 0 : first_ + 1;
    --free_pages_;
    for (std::int32_t i = 0; i < page_size_ && done < count; ++i, ++done)
      out[static_cast<std::size_t>(done)] = page * page_size_ + i;
  }
  return true;
}

void KvPagePool::release(std::span<const KvIndex> indices) {
  for (const KvIndex index : indices) {
    require(index >= page_size_ && index / page_size_ <= pages(), "indices", index, "is out of range");
    require(is_used(state_[static_cast<std::size_t>(index / page_size_)]), "indices", index, "is in a free page");
  }
  for (const KvIndex index : indices) {
    State& state = state_[static_cast<std::size_t>(index / page_size_)];
    if (!is_used(state)) continue;
    if (state == State::used_and_closed) {
      state = State::closed;
      ++closed_pages_;
      continue;
    }
    state = State::free;
    ring_at(free_pages_++) = index / page_size_;
  }
}

void KvPagePool::close(std::int32_t first, std::int32_t count) {
  require_pages(first, count, false);
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < free_pages_; ++i) {
    const std::int32_t page = ring_at(i);
    if (page < first || page - first >= count) ring_at(kept++) = page;
  }
  closed_pages_ += free_pages_ - kept;
  free_pages_ = kept;
  for (std::int32_t page = std::max(first, 1); page < first + count; ++page) {
    State& state = state_[static_cast<std::size_t>(page)];
    state = state == State::used ? State::used_and_closed : State::closed;
  }
}

void KvPagePool::open(std::int32_t first, std::int32_t count) {
  require_pages(first, count, true);
  for (std::int32_t page = std::max(first, 1); page < first + count; ++page) {
    State& state = state_[static_cast<std::size_t>(page)];
    if (std::exchange(state, is_used(state) ? State::used : State::free) != State::closed) continue;
    ring_at(free_pages_++) = page;
    --closed_pages_;
  }
}

void KvPagePool::require_pages(std::int32_t first, std::int32_t count, bool closed) const {
  require(first >= 0 && first <= pages() + 1, "first", first, "must be a page");
  require(count >= 0 && count <= pages() + 1 - first, "count", count, "must end inside the pool");
  for (std::int32_t page = std::max(first, 1); page < first + count; ++page) {
    const State state = state_[static_cast<std::size_t>(page)];
    const bool is_closed = state == State::closed || state == State::used_and_closed;
    require(is_closed == closed, "page", page, closed ? "is not closed" : "is closed");
  }
}

void KvPagePool::check_invariants() const {
  constexpr const char* structure = "KvPagePool";
  std::vector<bool> free(state_.size(), false);
  for (std::int64_t i = 0; i < free_pages_; ++i) {
    const auto page = static_cast<std::size_t>(ring_[static_cast<std::size_t>((first_ + i) % pages())]);
    require_invariant(!free[page], structure, "a page is free twice");
    free[page] = true;
  }
  for (std::size_t page = 1; page < state_.size(); ++page)
    require_invariant(free[page] == (state_[page] == State::free), structure, "a page is neither used nor free");
  require_invariant(std::ranges::count(state_, State::closed) == closed_pages_, structure,
                    "the closed pages are not counted");
}

}  // namespace stateport
