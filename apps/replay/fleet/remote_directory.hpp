// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include "caches/item_lru.hpp"
#include "containers/flat_map.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::replay {

/// As a key of hash tables.
struct ImageKeyHash {
  [[nodiscard]] std::size_t operator()(const ImageKey& key) const noexcept {
    const auto kind = static_cast<std::uint64_t>(key.content) + 2 * static_cast<std::uint64_t>(key.group);
    return static_cast<std::size_t>(key.prefix.words[0] ^ (kind * 0x9e3779b97f4a7c15U));
  }
};

/// A remote store that all nodes share: the keys of its images, with a capacity. It evicts the image that was least
/// recently written or read. Every operation is O(1). Not thread-safe.
class RemoteDirectory {
 public:
  enum class Put : std::uint8_t { added, was_there, no_room };
  struct Counts {
    std::int64_t added_images = 0;
    std::int64_t added_bytes = 0;
    std::int64_t evicted_images = 0;
    std::int64_t evicted_bytes = 0;
  };

  /// Throws InvalidArgument for capacity_bytes < 0.
  explicit RemoteDirectory(std::int64_t capacity_bytes);

  [[nodiscard]] bool has(const ImageKey& key) const { return items_.contains(key); }
  /// Stores the image. An image that is there stays, and counts as written again. no_room: larger than the capacity.
  /// Precondition: bytes >= 1, the same for equal keys.
  Put put(const ImageKey& key, std::int64_t bytes);
  /// Reads the image. False: it is not there.
  [[nodiscard]] bool get(const ImageKey& key);

  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  [[nodiscard]] std::int64_t images() const noexcept { return static_cast<std::int64_t>(items_.size()); }
  [[nodiscard]] std::int64_t bytes() const noexcept { return order_.used_bytes(); }
  /// Throws std::logic_error naming the first violation. O(n).
  void check_invariants() const;

 private:
  void evict_one();

  std::int64_t capacity_bytes_;
  FlatMap<ImageKey, ItemLru::Item, ImageKeyHash> items_;
  std::vector<ImageKey> keys_;  ///< by item
  std::vector<ItemLru::Item> free_;
  ItemLru order_;
  Counts counts_;
};

}  // namespace stateport::replay
