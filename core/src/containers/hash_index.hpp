// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include "containers/table.hpp"

#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// A hash for HashIndex of a number that may come from anywhere: the high half of the product has something of every
/// bit (Knuth, 6.4).
[[nodiscard]] constexpr std::uint32_t mixed_hash(std::uint64_t number) noexcept {
  return static_cast<std::uint32_t>(((number ^ (number >> 32)) * 0x9E3779B97F4A7C15U) >> 32);
}

/// A set of 32-bit numbers (blocks, slots, nodes), each found by a 32-bit hash of something that its owner keeps. Two
/// numbers may have the same hash: the caller says which of them matches. Linear probing in buckets of 8 bytes, homes
/// spread over any capacity by multiplication, erased by shifting back (Knuth, The Art of Computer Programming 3, 6.4,
/// algorithm R), so there are no tombstones and nothing is ever rehashed: at a load of 0.5 an entry takes 16 bytes and
/// a search 1 to 3 buckets of one cache line, where tsl::robin_map takes 48 to 96 bytes and about two lines.
///
/// find, insert, assign, erase: O(1) expected, if the high bits of hashes are well mixed. No allocation but in
/// reserve(). Not thread-safe.
class HashIndex {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  /// At most `load_percent` of 100 buckets are in use (1 to 99): fewer make searches shorter, those that find nothing
  /// most of all.
  explicit HashIndex(std::size_t load_percent) noexcept : load_percent_(load_percent) {}

  /// Room for `entries` entries.
  void reserve(std::size_t entries) {
    const std::size_t wanted = entries * 100 / load_percent_ + spare_buckets;
    if (wanted <= buckets_.size()) return;
    Table<Bucket> old(wanted);
    old.swap(buckets_);
    count_ = 0;
    for (const Bucket& bucket : old)
      if (bucket.number != none) insert(bucket.hash, bucket.number);
  }

  /// The number with this hash for which `matches(number)` is true, or none. A table without room finds nothing.
  template <class Matches>
  [[nodiscard]] std::uint32_t find(std::uint32_t hash, Matches&& matches) const {
    for (std::size_t at = home(hash); buckets_[at].number != none; at = after(at))
      if (buckets_[at].hash == hash && matches(buckets_[at].number)) return buckets_[at].number;
    return none;
  }

  struct Glance {
    std::uint32_t number = none;  ///< with this hash, if the first bucket of its search holds one
    bool ends = false;            ///< the first bucket holds it or is free: nothing else has this hash before it
  };
  /// The first bucket of a search, read without a branch: of many searches at once, which ones go on is then the only
  /// thing that a processor has to guess.
  [[nodiscard]] Glance glance(std::uint32_t hash) const noexcept {
    const Bucket bucket = buckets_[home(hash)];
    const bool is_free = bucket.number == none;
    const bool is_it = bucket.hash == hash;
    return {is_it ? bucket.number : none, is_it || is_free};
  }

  /// Precondition: there is room, and (hash, number) is not in the table.
  void insert(std::uint32_t hash, std::uint32_t number) noexcept {
    std::size_t at = home(hash);
    while (buckets_[at].number != none) at = after(at);
    buckets_[at] = {hash, number};
    ++count_;
  }

  /// Puts `number` in the place of the one with this hash for which `matches(it)` is true, or adds it. Precondition:
  /// there is room.
  template <class Matches>
  void assign(std::uint32_t hash, std::uint32_t number, Matches&& matches) {
    std::size_t at = home(hash);
    while (buckets_[at].number != none && !(buckets_[at].hash == hash && matches(buckets_[at].number))) at = after(at);
    count_ += buckets_[at].number == none;
    buckets_[at] = {hash, number};
  }

  /// True if (hash, number) was in the table.
  bool erase(std::uint32_t hash, std::uint32_t number) noexcept {
    std::size_t hole = place(hash, number);
    if (buckets_[hole].number == none) return false;
    for (std::size_t at = after(hole); buckets_[at].number != none; at = after(at)) {
      if (between(hole, home(buckets_[at].hash), at)) continue;
      buckets_[hole] = buckets_[at];
      hole = at;
    }
    buckets_[hole] = {};
    --count_;
    return true;
  }

  /// The bucket where a search for `hash` begins, to be fetched ahead of it.
  [[nodiscard]] const void* bucket(std::uint32_t hash) const noexcept { return &buckets_[home(hash)]; }

  void clear() noexcept {
    for (Bucket& bucket : buckets_) bucket = {};
    count_ = 0;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return buckets_.size() * sizeof(Bucket); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  /// Throws std::logic_error naming the first broken invariant; `hash_of(number)` is the hash that a number should be
  /// found by. O(buckets).
  template <class HashOf>
  void check_invariants(HashOf&& hash_of) const {
    std::size_t used = 0;
    for (std::size_t at = 0; at < buckets_.size(); ++at) {
      const Bucket& bucket = buckets_[at];
      if (bucket.number == none) continue;
      ++used;
      require_invariant(hash_of(bucket.number) == bucket.hash, "HashIndex", "an entry has another hash");
      require_invariant(place(bucket.hash, bucket.number) == at, "HashIndex", "an entry cannot be found");
    }
    require_invariant(used == count_, "HashIndex", "the number of entries is wrong");
    require_invariant(buckets_.empty() || used < buckets_.size(), "HashIndex", "no bucket is free");
  }

 private:
  static constexpr std::size_t spare_buckets = 8;  // a search ends at a free bucket, also in the smallest table

  struct Bucket {
    std::uint32_t hash = 0;
    std::uint32_t number = none;
  };

  [[nodiscard]] std::size_t home(std::uint32_t hash) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{hash} * buckets_.size()) >> 32);
  }
  [[nodiscard]] std::size_t after(std::size_t at) const noexcept { return at + 1 == buckets_.size() ? 0 : at + 1; }
  /// True if a walk that starts behind `hole` meets `home` not later than `at`: the entry at `at` stays there.
  [[nodiscard]] static bool between(std::size_t hole, std::size_t home, std::size_t at) noexcept {
    return hole < at ? hole < home && home <= at : hole < home || home <= at;
  }
  /// Where (hash, number) is, or the free bucket that says that it is not there.
  [[nodiscard]] std::size_t place(std::uint32_t hash, std::uint32_t number) const noexcept {
    std::size_t at = home(hash);
    while (buckets_[at].number != number && buckets_[at].number != none) at = after(at);
    return at;
  }

  Table<Bucket> buckets_;
  std::size_t load_percent_;
  std::size_t count_ = 0;
};

}  // namespace stateport::detail
