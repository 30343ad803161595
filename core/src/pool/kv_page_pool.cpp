// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/kv_page_pool.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport {

KvPagePool::KvPagePool(std::int64_t indices, std::int32_t page_size) : page_size_(page_size) {
  require(page_size >= 1, "page_size", page_size, "must be at least 1");
  require(indices >= 0 && indices <= INT32_MAX - page_size, "indices", indices, "must fit 32-bit indices");
  ring_.resize(static_cast<std::size_t>(indices / page_size));
  used_.resize(ring_.size() + 1);
  reset();
}

void KvPagePool::reset() noexcept {
  first_ = 0;
  free_pages_ = pages();
  std::int32_t page = 0;
  for (std::int32_t& entry : ring_) entry = ++page;
  std::ranges::fill(used_, std::uint8_t{0});
}

bool KvPagePool::allocate(std::span<KvIndex> out) noexcept {
  const auto count = static_cast<std::int64_t>(out.size());
  if ((count + page_size_ - 1) / page_size_ > free_pages_) return false;
  for (std::int64_t done = 0; done < count;) {
    const std::int32_t page = ring_[static_cast<std::size_t>(first_)];
    used_[static_cast<std::size_t>(page)] = 1;
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
    require(used_[static_cast<std::size_t>(index / page_size_)] != 0, "indices", index, "is in a free page");
  }
  for (const KvIndex index : indices) {
    std::uint8_t& used = used_[static_cast<std::size_t>(index / page_size_)];
    if (used == 0) continue;
    used = 0;
    ring_[static_cast<std::size_t>((first_ + free_pages_++) % pages())] = index / page_size_;
  }
}

void KvPagePool::check_invariants() const {
  constexpr const char* structure = "KvPagePool";
  std::vector<bool> free(used_.size(), false);
  for (std::int64_t i = 0; i < free_pages_; ++i) {
    const auto page = static_cast<std::size_t>(ring_[static_cast<std::size_t>((first_ + i) % pages())]);
    require_invariant(!free[page], structure, "a page is free twice");
    free[page] = true;
  }
  for (std::size_t page = 1; page < used_.size(); ++page)
    require_invariant(free[page] == (used_[page] == 0), structure, "a page is neither used nor free");
}

}  // namespace stateport
