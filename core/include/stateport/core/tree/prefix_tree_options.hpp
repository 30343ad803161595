// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/memory_cost.hpp>
#include <stateport/core/stats/kv_event.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace stateport {

/// Options of a PrefixTree; only `slots` has no useful default.
struct PrefixTreeOptions {
  std::int32_t page_size = 1;   ///< tokens of a page; prefixes are kept and matched in whole pages
  std::int32_t slots = 0;       ///< room for states: slots 0 … slots - 1
  std::int32_t chunk_size = 1;  ///< of a prefill; branching positions lie on the grid lcm(chunk_size, page_size)
  /// The largest number of states on a path, as far as forks and locks allow; -1: no limit.
  std::int32_t max_states_per_path = -1;
  std::uint64_t layout_fingerprint = 0;  ///< of the states' memory layout; part of every tag
  EvictionOrder eviction = EvictionOrder::hix;
  EvictionOptions eviction_options;
  MemoryCost memory;  ///< by which EvictDemand::bytes and the policy that `eviction` names count
  /// Used instead of `eviction` if given. Throws InvalidState for a LearningPolicy that another cache has claimed.
  std::shared_ptr<EvictionPolicy> policy;
  /// For a policy that learns: it keeps the history of positions this many tokens apart, rounded up to whole pages. A
  /// prefix that ends between two positions shares the history of the earlier one; one that is shorter than the first
  /// has none. Costs 8 bytes for each page of the room for tokens.
  std::int32_t position_tokens = 64;
  /// > 0: KV indices are below this, and an index that the tree already owns, or that is named twice, is refused. The
  /// constructor then reserves address space for all that such a tree can hold. After it only peek_victims(), dumps and
  /// `freed` allocate. 0: not known. Then insert() allocates, too, when the room of the next two options is used up.
  std::int64_t kv_indices = 0;
  std::size_t reserve_nodes = 1024;  ///< room for nodes at the start; without effect with kv_indices
  /// Room for tokens at the start. With kv_indices: all the room for tokens, at least kv_indices; 0: four times that. A
  /// prefix that finds no room in one piece is kept in several nodes.
  std::size_t reserve_tokens = 0;
  /// Of the tables of nodes and names, of tags, and of the keys that a policy that learns knows positions by. A secret
  /// where tenants are not trusted: then a tenant cannot choose prompts that fall into one place of a table.
  std::uint64_t hash_seed = 0;
  /// Called for every state or node that is about to leave the tree: by evict(), match_with_live_slot(), drop_state()
  /// or max_states_per_path, not by reset(). It returns true to keep the slot of the state: the slot then belongs to
  /// the caller, who copies it and gives it back with release_slots(). A kept slot does not count as freed: evict()
  /// goes on to meet its demand. Must not throw or call the tree.
  std::function<bool(const Victim&)> on_victim;
  /// Called for KV that came (during an insert, once for each node that it makes) or left (by eviction or reset), in
  /// order, so that a router can follow. Costs a hash a new page, and 32 bytes a page. Must not throw or call the tree.
  std::function<void(const KvEvent&)> on_kv_event;
  BlockHashKind kv_event_hash = BlockHashKind::sha256;  ///< the hash by which events name blocks
  std::uint64_t kv_event_hash_seed = 0;                 ///< see BlockHasherOptions::seed
};

}  // namespace stateport
