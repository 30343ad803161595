// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <algorithm>
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
  /// Calls visit(word, bits) for indices that follow each other and share a word, from the front on, until it answers
  /// false. Returns how many indices it visited. Indices of a page follow each other.
  template <class Visit>
  static std::size_t for_each_run(std::span<const KvIndex> kv, Visit&& visit) {
    for (std::size_t i = 0; i < kv.size();) {
      const auto bit = static_cast<std::size_t>(kv[i]) % 64;
      const std::size_t longest = std::min(64 - bit, kv.size() - i);
      std::size_t run = 1;
      while (run < longest && kv[i + run] == kv[i] + static_cast<KvIndex>(run)) ++run;
      if (!visit(static_cast<std::size_t>(kv[i]) / 64, (~std::uint64_t{0} >> (64 - run)) << bit)) return i;
      i += run;
    }
    return kv.size();
  }
  void set(std::span<const KvIndex> kv, bool own) noexcept {
    if (count_ == 0) return;
    for_each_run(kv, [&](std::size_t word, std::uint64_t bits) {
      words_[word] = own ? words_[word] | bits : words_[word] & ~bits;
      return true;
    });
  }
  [[nodiscard]] bool contains(KvIndex index) const noexcept {
    const auto at = static_cast<std::size_t>(index);
    return (words_[at / 64] >> (at % 64) & 1U) != 0;
  }

  std::int64_t count_;
  std::vector<std::uint64_t> words_;
};

}  // namespace stateport::detail
