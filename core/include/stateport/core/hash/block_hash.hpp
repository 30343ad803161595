// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport {

/// 128 bits that name a token prefix (with its namespace): the leading half of a chained block digest.
struct PrefixHash {
  std::array<std::uint64_t, 2> words = {0, 0};
  friend constexpr bool operator==(const PrefixHash&, const PrefixHash&) noexcept = default;
};

/// The map key of a block: 63 bits of its chained digest. Positive = a real hash; two more values have a meaning. Two
/// prefixes may share a key: a state that is found by its key is confirmed by its StateTag before it is used.
using BlockHash = std::int64_t;
inline constexpr BlockHash root_hash = 0;           ///< parent of a prompt's first block
inline constexpr BlockHash hash_not_computed = -1;  ///< a block that is not full yet, or not registered

/// The full digest of one block and of everything before it. 16-byte hashes fill the first half.
struct BlockDigest {
  std::array<std::uint8_t, 32> bytes = {};

  /// The leading 128 bits, as two little-endian words.
  [[nodiscard]] constexpr PrefixHash prefix() const noexcept { return {{word(0), word(8)}}; }
  /// The leading 64 bits folded into [1, 2^63 - 1].
  [[nodiscard]] constexpr BlockHash key() const noexcept {
    constexpr std::uint64_t largest = (std::uint64_t{1} << 63) - 1;
    return static_cast<BlockHash>(word(0) % largest) + 1;
  }
  friend constexpr bool operator==(const BlockDigest&, const BlockDigest&) noexcept = default;

 private:
  [[nodiscard]] constexpr std::uint64_t word(std::size_t first) const noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(bytes[first + i]) << (8 * i);
    return value;
  }
};

/// The hashes of a prompt's full blocks, as the matcher and the planner read them: keys for the maps, prefixes for the
/// tags. Both vectors have one element per block.
struct PromptHashes {
  std::vector<BlockHash> keys;
  std::vector<PrefixHash> prefixes;

  void clear() noexcept {
    keys.clear();
    prefixes.clear();
  }
  void append(const BlockDigest& digest) {
    prefixes.push_back(digest.prefix());
    try {
      keys.push_back(digest.key());
    } catch (...) {
      prefixes.pop_back();
      throw;
    }
  }
};

}  // namespace stateport
