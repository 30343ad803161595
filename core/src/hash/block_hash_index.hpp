// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/ids.hpp>

#include "containers/hash_index.hpp"
#include "containers/prefetch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::detail {

/// Finds a block or a slot by block hash. An entry holds 32 mixed bits of the hash; the whole hash is compared with the
/// one that the owner keeps per block or slot, `hash_of(id)`, which must not change while the id is in the index. Of
/// two ids with one hash the one assigned last is found, or one of those that were added; an index is filled in one of
/// these two ways.
///
/// find, assign, erase: O(1) expected, one cache miss in a large index, which prefetch() takes out of the way. No
/// allocation after construction. Not thread-safe.
template <class IdType>
class BlockHashIndex {
 public:
  /// Room for `ids` ids.
  explicit BlockHashIndex(std::size_t ids) { entries_.reserve(ids); }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.count(); }
  void prefetch(BlockHash hash) const noexcept { detail::prefetch(entries_.bucket(mixed(hash))); }

  /// IdType{} if no id has it.
  template <class HashOf>
  [[nodiscard]] IdType find(BlockHash hash, HashOf&& hash_of) const {
    return id_of(entries_.find(mixed(hash), [&](std::uint32_t number) { return hash_of(id_of(number)) == hash; }));
  }
  /// An id that probably has it, nothing compared with hash_of; if it has another hash, find() may still find one.
  [[nodiscard]] IdType guess(BlockHash hash) const {
    return id_of(entries_.find(mixed(hash), [](std::uint32_t) { return true; }));
  }

  /// Writes the ids that have the leading hashes into `out`, at least as long, and returns how many there are: up to
  /// the first hash that no id has. `fetch(id)` fetches the memory that hash_of(id) reads.
  template <class HashOf, class Fetch>
  [[nodiscard]] std::size_t find_prefix(std::span<const BlockHash> hashes, std::span<IdType> out, HashOf&& hash_of,
                                        Fetch&& fetch) const {
    // Chunk by chunk, so that the misses of a chunk overlap: its buckets, which are also those where hashes that are
    // not found will soon be registered, then the owner's entries of the ids that are probably meant.
    constexpr std::size_t chunk = 2 * prefetch_distance;
    const auto prefetch_chunk = [&](std::size_t begin) {
      for (std::size_t i = begin; i < std::min(begin + chunk, hashes.size()); ++i) prefetch(hashes[i]);
    };
    prefetch_chunk(0);
    for (std::size_t begin = 0; begin < hashes.size(); begin += chunk) {
      prefetch_chunk(begin + chunk);
      const std::size_t end = std::min(begin + chunk, hashes.size());
      for (std::size_t i = begin; i < end; ++i) {
        out[i] = guess(hashes[i]);
        if (!out[i].valid()) break;
        fetch(out[i]);
      }
      for (std::size_t i = begin; i < end; ++i) {
        if (out[i].valid() && hash_of(out[i]) != hashes[i]) out[i] = find(hashes[i], hash_of);
        if (!out[i].valid()) return i;
      }
    }
    return hashes.size();
  }

  /// From now on the hash finds `id`, or another one that was added with it: all of them stay. Precondition:
  /// hash_of(id) == hash, and the id is not in the index.
  void add(BlockHash hash, IdType id) noexcept { entries_.insert(mixed(hash), number_of(id)); }
  /// From now on the hash finds `id` and no other one. Precondition: hash_of(id) == hash.
  template <class HashOf>
  void assign(BlockHash hash, IdType id, HashOf&& hash_of) {
    entries_.assign(mixed(hash), number_of(id), [&](std::uint32_t number) { return hash_of(id_of(number)) == hash; });
  }
  /// Without effect if the hash finds another id, or none. hash_of is not asked.
  void erase(BlockHash hash, IdType id) noexcept { entries_.erase(mixed(hash), number_of(id)); }
  void clear() noexcept { entries_.clear(); }

  /// Throws std::logic_error naming the first broken invariant. O(capacity).
  template <class HashOf>
  void check_invariants(HashOf&& hash_of) const {
    entries_.check_invariants([&](std::uint32_t number) { return mixed(hash_of(id_of(number))); });
  }

 private:
  /// Keys may come from any encoding: the high half of the product has something of every bit (Knuth, 6.4).
  [[nodiscard]] static std::uint32_t mixed(BlockHash hash) noexcept {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(hash) * 0x9e3779b97f4a7c15u) >> 32);
  }
  [[nodiscard]] static std::uint32_t number_of(IdType id) noexcept { return static_cast<std::uint32_t>(id.value()); }
  /// HashIndex::none becomes IdType{}.
  [[nodiscard]] static IdType id_of(std::uint32_t number) noexcept { return IdType{static_cast<std::int32_t>(number)}; }

  /// Two thirds are empty: most lookups of a serving engine are of blocks that are not cached, and the mispredicted
  /// branches of longer probes cost more than the memory that they save.
  HashIndex entries_{33};
};

}  // namespace stateport::detail
