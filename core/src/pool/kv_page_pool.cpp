// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/kv_page_pool.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport {
namespace {

/// Calls visit(index) for each index that does not lie in the same page as the index before it.
template <class Visit>
void for_each_page(std::span<const KvIndex> indices, std::int32_t page_size, Visit&& visit) {
  for (std::size_t i = 0; i < indices.size();) {
    const KvIndex index = indices[i];
    visit(index);
    const KvIndex first = index - index % page_size;
    while (++i < indices.size() && indices[i] >= first && indices[i] - first < page_size) {
    }
  }
}

}  // namespace

KvPagePool::KvPagePool(std::int64_t indices, std::int32_t page_size) : page_size_(page_size) {
  require(page_size >= 1, "page_size", page_size, "must be at least 1");
  require(indices >= 0 && indices <= INT32_MAX - page_size, "indices", indices, "must fit 32-bit indices");
  ring_.resize(static_cast<std::size_t>(indices / page_size));
  state_.resize(ring_.size() + 1);
  reset();
}

void KvPagePool::reset() noexcept {
  first_ = 0;
  free_pages_ = 0;
  for (std::int32_t page = 1; page <= pages(); ++page) {
    state(page) &= closed_bit;
    if (state(page) == 0) ring_[static_cast<std::size_t>(free_pages_++)] = page;
  }
  closed_pages_ = pages() - free_pages_;
}

bool KvPagePool::allocate(std::span<KvIndex> out) noexcept {
  const auto count = static_cast<std::int64_t>(out.size());
  if ((count + page_size_ - 1) / page_size_ > free_pages_) return false;
  for (std::int64_t done = 0; done < count;) {
    const std::int32_t page = ring_[static_cast<std::size_t>(first_)];
    state(page) = used_bit;
    first_ = first_ + 1 == pages() ? 0 : first_ + 1;
    --free_pages_;
    for (std::int32_t i = 0; i < page_size_ && done < count; ++i, ++done)
      out[static_cast<std::size_t>(done)] = page * page_size_ + i;
  }
  return true;
}

void KvPagePool::release(std::span<const KvIndex> indices) {
  for_each_page(indices, page_size_, [this](KvIndex index) {
    require(index >= page_size_ && index / page_size_ <= pages(), "indices", index, "is out of range");
    require((state(index / page_size_) & used_bit) != 0, "indices", index, "is in a free page");
  });
  for_each_page(indices, page_size_, [this](KvIndex index) {
    const std::int32_t page = index / page_size_;
    std::uint8_t& bits = state(page);
    if ((bits & used_bit) == 0) return;
    bits &= closed_bit;
    if (bits == 0)
      ring_[static_cast<std::size_t>((first_ + free_pages_++) % pages())] = page;
    else
      ++closed_pages_;
  });
}

void KvPagePool::close(std::span<const NumberRange> ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    try {
      require_pages(ranges[i], false);
    } catch (...) {
      for (const NumberRange& marked : ranges.first(i)) mark_closed(marked, false);
      throw;
    }
    mark_closed(ranges[i], true);
  }
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < free_pages_; ++i)
    if (const std::int32_t page = ring_at(i); state(page) == 0) ring_at(kept++) = page;
  closed_pages_ += free_pages_ - kept;
  free_pages_ = kept;
}

void KvPagePool::open(std::int32_t first, std::int32_t count) {
  require_pages({first, count}, true);
  for (std::int32_t page = std::max(first, 1); page < first + count; ++page) {
    state(page) &= used_bit;
    if (state(page) != 0) continue;
    ring_at(free_pages_++) = page;
    --closed_pages_;
  }
}

void KvPagePool::mark_closed(const NumberRange& range, bool closed) noexcept {
  for (std::int32_t page = std::max(range.first, 1); page < range.first + range.count; ++page)
    state(page) = static_cast<std::uint8_t>((state(page) & used_bit) | (closed ? closed_bit : 0));
}

void KvPagePool::require_pages(const NumberRange& range, bool closed) const {
  const auto [first, count] = range;
  require(first >= 0 && first <= pages() + 1, "first", first, "must be a page");
  require(count >= 0 && count <= pages() + 1 - first, "count", count, "must end inside the pool");
  for (std::int32_t page = std::max(first, 1); page < first + count; ++page)
    require(((state_[static_cast<std::size_t>(page)] & closed_bit) != 0) == closed, "page", page,
            closed ? "is not closed" : "is closed");
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
    require_invariant(free[page] == (state_[page] == 0), structure, "a page is neither used nor free");
  require_invariant(std::ranges::count(state_, closed_bit) == closed_pages_, structure,
                    "the closed pages are counted wrong");
}

}  // namespace stateport
