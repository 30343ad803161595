// SPDX-License-Identifier: Apache-2.0
#include "fleet/remote_directory.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::replay {

RemoteDirectory::RemoteDirectory(std::int64_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), order_(capacity_bytes) {}

RemoteDirectory::Put RemoteDirectory::put(const ImageKey& key, std::int64_t bytes) {
  if (get(key)) return Put::was_there;
  if (bytes > capacity_bytes_) return Put::no_room;
  ItemLru::Item item = static_cast<ItemLru::Item>(keys_.size());
  if (free_.empty()) {
    keys_.push_back(key);
  } else {
    item = free_.back();
    free_.pop_back();
    keys_[item] = key;
  }
  items_.emplace(key, item);
  order_.touch(item, bytes);
  ++counts_.added_images;
  counts_.added_bytes += bytes;
  while (order_.over_budget()) evict_one();
  return Put::added;
}

bool RemoteDirectory::get(const ImageKey& key) {
  const auto found = items_.find(key);
  if (found == items_.end()) return false;
  order_.touch(found->second, 0);
  return true;
}

void RemoteDirectory::evict_one() {
  const std::int64_t before = order_.used_bytes();
  const ItemLru::Item item = order_.evict();
  items_.erase(keys_[item]);
  free_.push_back(item);
  ++counts_.evicted_images;
  counts_.evicted_bytes += before - order_.used_bytes();
}

void RemoteDirectory::check_invariants() const {
  order_.check_invariants();
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "RemoteDirectory", what); };
  check(items_.size() == order_.size(), "a key without an item, or the other way round");
  check(items_.size() + free_.size() == keys_.size(), "items are lost");
  for (const auto& [key, item] : items_) check(order_.contains(item) && keys_[item] == key, "a key of another item");
  check(order_.used_bytes() <= capacity_bytes_, "more bytes than there is room for");
  check(counts_.added_bytes - counts_.evicted_bytes == order_.used_bytes(), "bytes came or went uncounted");
  check(counts_.added_images - counts_.evicted_images == images(), "images came or went uncounted");
}

}  // namespace stateport::replay
