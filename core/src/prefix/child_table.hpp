// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stateport/core/table.hpp>

namespace stateport::detail {

/// The children of all nodes: a set of node indices found by a hash of (parent, first page); the caller compares.
/// Linear probing in buckets of 8 bytes, erased by shifting back, homes spread over any capacity by multiplication:
/// 10 bytes a node at a load of 0.8, where tsl::robin_map needs 24 to 48. No allocation but in reserve().
class ChildTable {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  /// Room for `nodes` entries. Rehashes by the stored hashes.
  void reserve(std::size_t nodes) {
    const std::size_t wanted = nodes + nodes / 4 + 8;
    if (wanted <= buckets_.size()) return;
    Table<Bucket> old(wanted);
    old.swap(buckets_);
    for (const Bucket& bucket : old)
      if (bucket.node != none) insert(bucket.hash, bucket.node);
  }

  template <class Matches>
  [[nodiscard]] std::uint32_t find(std::uint32_t hash, Matches&& matches) const {
    for (std::size_t at = home(hash); buckets_[at].node != none; at = after(at))
      if (buckets_[at].hash == hash && matches(buckets_[at].node)) return buckets_[at].node;
    return none;
  }

  void insert(std::uint32_t hash, std::uint32_t node) noexcept {
    std::size_t at = home(hash);
    while (buckets_[at].node != none) at = after(at);
    buckets_[at] = {hash, node};
  }

  /// Precondition: (hash, node) is in the table.
  void replace(std::uint32_t hash, std::uint32_t node, std::uint32_t by) noexcept {
    buckets_[place(hash, node)].node = by;
  }

  /// Precondition: (hash, node) is in the table.
  void erase(std::uint32_t hash, std::uint32_t node) noexcept {
    std::size_t hole = place(hash, node);
    for (std::size_t at = after(hole); buckets_[at].node != none; at = after(at)) {
      // An entry moves into the hole unless its home lies behind the hole.
      if (distance(home(buckets_[at].hash), at) < distance(hole, at)) continue;
      buckets_[hole] = buckets_[at];
      hole = at;
    }
    buckets_[hole] = {};
  }

  /// The bucket where a search for `hash` begins, to be fetched ahead of it.
  [[nodiscard]] const void* bucket(std::uint32_t hash) const noexcept { return &buckets_[home(hash)]; }

  void clear() noexcept {
    for (Bucket& bucket : buckets_) bucket = {};
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return buckets_.size() * sizeof(Bucket); }
  [[nodiscard]] std::size_t count() const noexcept {
    std::size_t entries = 0;
    for (const Bucket& bucket : buckets_) entries += bucket.node != none;
    return entries;
  }

 private:
  struct Bucket {
    std::uint32_t hash = 0;
    std::uint32_t node = none;
  };

  [[nodiscard]] std::size_t home(std::uint32_t hash) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{hash} * buckets_.size()) >> 32);
  }
  [[nodiscard]] std::size_t after(std::size_t at) const noexcept { return at + 1 == buckets_.size() ? 0 : at + 1; }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return to >= from ? to - from : to + buckets_.size() - from;
  }
  [[nodiscard]] std::size_t place(std::uint32_t hash, std::uint32_t node) const noexcept {
    std::size_t at = home(hash);
    while (buckets_[at].node != node) at = after(at);
    return at;
  }

  Table<Bucket> buckets_;
};

}  // namespace stateport::detail
