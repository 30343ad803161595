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
  for (const KvIndex index : kv) {
    require(index < count_, "kv", index, "is beyond kv_indices");
    require(!contains(index), "kv", index, "is owned by the tree");
  }
  // Marked while looked at, so that an index named twice is found; the marks go in either case.
  std::size_t marked = 0;
  while (marked < kv.size() && !contains(kv[marked])) add(kv.subspan(marked++, 1));
  remove(kv.first(marked));
  require(marked == kv.size(), "kv", marked < kv.size() ? kv[marked] : 0, "is named twice");
}

std::size_t KvIndexSet::owned() const noexcept {
  std::size_t owned = 0;
  for (const std::uint64_t word : words_) owned += static_cast<std::size_t>(std::popcount(word));
  return owned;
}

}  // namespace stateport::detail
