// SPDX-License-Identifier: Apache-2.0
#include "tree/radix_tree.hpp"

#include <algorithm>

namespace stateport::detail {
namespace {

/// Calls `visit` with the number of each page of KV that the node has, until it answers false.
template <class Visit>
void for_each_page(const RadixNodes& nodes, std::uint32_t node, std::int32_t page_size, const Visit& visit) {
  const std::span<const KvIndex> kv = nodes.kv(node);
  for (std::size_t i = 0; i < kv.size(); i += static_cast<std::size_t>(page_size))
    if (!visit(kv[i] / page_size)) return;
}

/// Marks the unlocked nodes that have one of the pages, and all nodes below them.
void mark_pages(const RadixNodes& nodes, std::int32_t page_size, std::int32_t first, std::int32_t count,
                std::vector<EvictMark>& marks) {
  marks.assign(nodes.size(), EvictMark::unknown);
  marks[RadixNodes::root] = EvictMark::keep;
  for (std::uint32_t node = 1; node < nodes.size(); ++node) {
    if (nodes[node].pages == 0 || nodes[node].full_lock > 0) {
      marks[node] = EvictMark::keep;
      continue;
    }
    for_each_page(nodes, node, page_size, [&](std::int32_t page) {
      if (page >= first && page - first < count) marks[node] = EvictMark::evict;
      return marks[node] != EvictMark::evict;
    });
  }
  for (std::uint32_t node = 1; node < nodes.size(); ++node) {
    std::uint32_t known = node;
    while (marks[known] == EvictMark::unknown) known = nodes[known].parent;
    const EvictMark mark = marks[known];
    for (std::uint32_t at = node; at != known; at = nodes[at].parent) marks[at] = mark;
  }
}

}  // namespace

void count_evictable_pages(const RadixTree& tree, std::int32_t extent_pages, std::span<std::int32_t> by_extent) {
  std::ranges::fill(by_extent, 0);
  const RadixNodes& nodes = tree.shape();
  for (std::uint32_t node = 1; node < nodes.size(); ++node) {
    if (nodes[node].pages == 0 || nodes[node].full_lock > 0) continue;
    for_each_page(nodes, node, tree.options().page_size, [&](std::int32_t page) {
      ++by_extent[static_cast<std::size_t>(page / extent_pages)];
      return true;
    });
  }
}

/// No lock lies below a node without one, because a lock holds the whole path.
void RadixTree::evict_pages(std::int32_t first, std::int32_t count, Freed& freed, EvictResult& result) {
  mark_pages(nodes_, options_.page_size, first, count, marks_);
  for (std::uint32_t node = 1; node < nodes_.size(); ++node)
    for (std::uint32_t at = node; marks_[at] == EvictMark::evict && nodes_[at].children == 0;) {
      const std::uint32_t parent = nodes_[at].parent;
      marks_[at] = EvictMark::keep;
      remove_leaf(at, freed, result);
      at = parent;
    }
}

}  // namespace stateport::detail
