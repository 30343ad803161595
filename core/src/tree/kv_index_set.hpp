// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// The KV indices that a tree owns: a bit for each, if their number is known. Otherwise nothing is kept.
class KvIndexSet {
 public:
  /// Indices are below `count`; 0: unknown.
  explicit KvIndexSet(std::int64_t count) : count_(count), words_(static_cast<std::size_t>((count + 63) / 64), 0) {}

  /// Throws InvalidArgument for a negative index and, if their number is known, for one that is beyond it, owned, or
  /// named twice. Changes nothing.
  void check_new(std::span<const KvIndex> kv);
  void add(std::span<const KvIndex> kv) noexcept { set(kv, true); }
  void remove(std::span<const KvIndex> kv) noexcept { set(kv, false); }
  void clear() noexcept { words_.assign(words_.size(), 0); }

  [[nodiscard]] bool is_known() const noexcept { return count_ > 0; }
  /// How many are owned. O(indices).
  [[nodiscard]] std::size_t owned() const noexcept;

 private:
  void set(std::span<const KvIndex> kv, bool own) noexcept {
    if (count_ == 0) return;
    for (const KvIndex index : kv) {
      const std::uint64_t bit = std::uint64_t{1} << (index % 64);
      std::uint64_t& word = words_[static_cast<std::size_t>(index) / 64];
      word = own ? word | bit : word & ~bit;
    }
  }
  [[nodiscard]] bool contains(KvIndex index) const noexcept {
    const auto at = static_cast<std::size_t>(index);
    return (words_[at / 64] >> (at % 64) & 1U) != 0;
  }

  std::int64_t count_;
  std::vector<std::uint64_t> words_;
};

}  // namespace stateport::detail
