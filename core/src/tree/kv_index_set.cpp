// SPDX-License-Identifier: Apache-2.0
#include "tree/kv_index_set.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

namespace stateport::detail {

void KvIndexSet::check_new(std::span<const KvIndex> kv) {
  const KvIndex together = std::accumulate(kv.begin(), kv.end(), KvIndex{0}, std::bit_or());
  if (together < 0) require(false, "kv", *std::ranges::min_element(kv), "must not be negative");
  if (!is_known()) return;
  // Marked while looked at, so that an index named twice is found; the marks go in either case.
  const std::size_t marked = for_each_run(kv, [&](std::size_t word, std::uint64_t bits) {
    if (word >= words_.size() || (words_[word] & bits) != 0) return false;
    words_[word] |= bits;
    return true;
  });
  remove(kv.first(marked));
  const auto is_beyond = [this](KvIndex index) { return index >= count_; };
  if (marked == kv.size() && std::ranges::none_of(kv, is_beyond)) return;
  for (const KvIndex index : kv) {
    require(!is_beyond(index), "kv", index, "is beyond kv_indices");
    require(!contains(index), "kv", index, "is owned by the tree");
  }
  // None is beyond or owned, so the run that did not fit names one twice. Marked one by one, the second one shows.
  std::size_t first = 0;
  while (!contains(kv[first])) add(kv.subspan(first++, 1));
  remove(kv.first(first));
  require(false, "kv", kv[first], "is named twice");
}

std::size_t KvIndexSet::owned() const noexcept {
  std::size_t owned = 0;
  for (const std::uint64_t word : words_) owned += static_cast<std::size_t>(std::popcount(word));
  return owned;
}

}  // namespace stateport::detail
