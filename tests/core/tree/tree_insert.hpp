// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_tree.hpp>

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace stateport::test {

/// Inserts `key` with new KV indices (from `first_kv` on) and, unless told otherwise, a state of its whole pages.
inline InsertResult insert(PrefixTree& tree, const std::vector<Token>& key, KvIndex first_kv, bool with_state = true,
                           const Namespace& name_space = {}) {
  std::vector<KvIndex> kv(key.size());
  std::iota(kv.begin(), kv.end(), first_kv);
  SlotId slot;
  if (with_state) {
    REQUIRE(tree.allocate_slots({&slot, 1}));
    const auto page = static_cast<std::size_t>(tree.page_size());
    tree.tag_slot(slot, tree.state_tag(std::span(key).first(key.size() / page * page), name_space));
  }
  Freed freed;
  const InsertResult result = tree.insert({.tokens = key, .kv = kv, .slot = slot, .name_space = name_space}, freed);
  if (slot.valid() && result.state_exists) tree.release_slots({&slot, 1});
  return result;
}

}  // namespace stateport::test
