// SPDX-License-Identifier: Apache-2.0
#include "tree/radix_tree.hpp"

#include <algorithm>
#include <numeric>

namespace stateport::detail {

void count_unlocked_pages(const RadixTree& tree, std::int32_t extent_pages, std::span<std::int32_t> by_extent) {
  std::ranges::fill(by_extent, 0);
  const RadixNodes& nodes = tree.shape();
  const auto page_size = tree.options().page_size;
  for (std::uint32_t node = 1; node < nodes.size(); ++node) {
    if (nodes[node].pages == 0 || nodes[node].full_lock > 0) continue;
    const std::span<const KvIndex> kv = nodes.kv(node);
    for (std::size_t i = 0; i < kv.size(); i += static_cast<std::size_t>(page_size))
      ++by_extent[static_cast<std::size_t>(kv[i] / page_size / extent_pages)];
  }
}

void RadixTree::move_pages(const std::function<std::int32_t(std::int32_t)>& new_page) {
  const auto page_size = static_cast<std::size_t>(options_.page_size);
  for (std::uint32_t node = 1; node < nodes_.size(); ++node) {
    if (nodes_[node].pages == 0 || nodes_[node].full_lock > 0) continue;
    const std::span<const KvIndex> held = nodes_.kv(node);
    const std::span<KvIndex> kv(const_cast<KvIndex*>(held.data()), held.size());  // of nodes_, which are not const
    for (std::size_t i = 0; i < kv.size(); i += page_size) {
      const std::int32_t page = kv[i] / options_.page_size;
      const std::int32_t moved_to = new_page(page);
      if (moved_to == page) continue;
      const std::span<KvIndex> moved = kv.subspan(i, page_size);
      kv_.remove(moved);
      std::iota(moved.begin(), moved.end(), moved_to * options_.page_size);
      kv_.add(moved);
    }
  }
}

}  // namespace stateport::detail
