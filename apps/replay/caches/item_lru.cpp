// SPDX-License-Identifier: Apache-2.0
#include "caches/item_lru.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

namespace stateport::replay {

ItemLru::ItemLru(std::int64_t budget_bytes, std::size_t reserve_items) : budget_bytes_(budget_bytes) {
  require(budget_bytes >= 0, "budget_bytes", budget_bytes, "must not be negative");
  items_.reserve(reserve_items);
}

void ItemLru::touch(Item item, std::int64_t bytes) {
  STATEPORT_ASSERT(bytes >= 0 && item != none);
  if (item >= items_.size()) items_.resize(std::size_t{item} + 1);
  if (item == newest_) return;
  if (items_[item].bytes == absent) {
    items_[item].bytes = bytes;
    used_bytes_ += bytes;
    ++size_;
  } else {
    unlink(item);
  }
  items_[item].older = newest_;
  items_[item].newer = none;
  if (newest_ != none) items_[newest_].newer = item;
  newest_ = item;
  if (oldest_ == none) oldest_ = item;
}

void ItemLru::unlink(Item item) noexcept {
  const Links& links = items_[item];
  if (links.newer != none) items_[links.newer].older = links.older;
  if (links.older != none) items_[links.older].newer = links.newer;
  if (newest_ == item) newest_ = links.older;
  if (oldest_ == item) oldest_ = links.newer;
}

ItemLru::Item ItemLru::evict() noexcept {
  const Item item = oldest_;
  if (item == none) return none;
  unlink(item);
  used_bytes_ -= items_[item].bytes;
  items_[item] = {};
  --size_;
  return item;
}

void ItemLru::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "ItemLru", what); };
  std::size_t size = 0;
  std::int64_t bytes = 0;
  Item newer = none;
  for (Item item = newest_; item != none; item = items_[item].older) {
    check(contains(item) && items_[item].newer == newer && size < items_.size(), "the list is broken");
    ++size;
    bytes += items_[item].bytes;
    newer = item;
  }
  check(oldest_ == newer && size == size_ && bytes == used_bytes_, "size or bytes are counted wrong");
  std::size_t present = 0;
  for (const Links& links : items_) present += links.bytes != absent;
  check(present == size, "an item is present and not in the list");
}

}  // namespace stateport::replay
