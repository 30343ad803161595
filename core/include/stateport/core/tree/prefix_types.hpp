// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/cost.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

/// Options, inputs and outputs of a PrefixTree. Plain data.
namespace stateport {
namespace detail {
class TenantOwners;
}

/// Names a node of a PrefixTree. An index is used again after an eviction, with another generation: the id of an
/// evicted node is recognised and refused.
struct NodeId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  [[nodiscard]] constexpr bool is_root() const noexcept { return index == 0; }
  friend constexpr bool operator==(NodeId, NodeId) noexcept = default;
};

/// KV indices and slots that left the tree, in the order in which they did. The caller owns and reuses the storage:
/// calls append. The KV indices are the caller's again; the slots are already back in the tree's pool.
struct Freed {
  std::vector<KvIndex> kv;
  std::vector<SlotId> slots;
  void clear() noexcept {
    kv.clear();
    slots.clear();
  }
};

/// A victim that a PrefixTree is about to evict, reported before anything changes. The spans are valid until the tree
/// changes.
struct Victim {
  NodeId node;
  std::int64_t end_tokens = 0;    ///< length of the prefix that ends at the node
  SlotId slot;                    ///< state@end_tokens, or none
  StateTag tag;                   ///< of the state in `slot`
  std::span<const Token> tokens;  ///< of the node's segment; empty: the state is evicted alone, the node stays
  std::span<const KvIndex> kv;    ///< of these tokens
};

/// A change of the KV of a PrefixTree, for routers: the events that vLLM and SGLang publish (block stored, block
/// removed, all blocks cleared). A block is a page of the tree, named by the digest that BlockHasher gives the same
/// tokens with the namespace's salt and extra key as extra keys of their first block.
///
/// The spans are valid during the call alone.
struct KvEvent {
  enum class Kind : std::uint8_t {
    stored,   ///< blocks were added; their parent was added before and is still there
    removed,  ///< blocks were removed; no block that follows them is left
    cleared,  ///< all blocks were removed
  };
  Kind kind = Kind::cleared;
  std::span<const BlockDigest> blocks;  ///< consecutive blocks of one path
  BlockDigest parent;                   ///< stored: the block before the first; BlockDigest{} where a prompt begins
  std::span<const Token> tokens;        ///< stored: of all blocks
  Namespace name_space;                 ///< stored
};

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
  /// Set by a RequestCache with tenant_quotas alone: whose the pages of KV are. Victims are then those that the asking
  /// tenant may have evicted; the accounts are those of before the call, so each call asks for one victim.
  const detail::TenantOwners* owners = nullptr;
};

/// The answer of a lookup: the deepest node that has a state.
struct PrefixMatch {
  NodeId node;                     ///< the root if nothing is usable
  std::int64_t tokens = 0;         ///< usable tokens: the length of the path to `node`, whole pages
  SlotId slot;                     ///< state@tokens, or none
  StateTag tag;                    ///< of the state in `slot`
  std::int64_t walked_tokens = 0;  ///< tokens whose KV is in the tree, >= tokens
  /// The deepest node that ends within walked_tokens. It ends there exactly, unless the tree had no node left to split
  /// an edge with: then before.
  NodeId kv_node;
  /// Where a checkpoint would make the next request hit: walked_tokens floored to the grid lcm(chunk, page), if that
  /// is more than `tokens`.
  std::optional<std::int64_t> branching_position;
  std::optional<LostHit> lost;  ///< why not all of walked_tokens is usable
  SlotId live_slot;             ///< match_with_live_slot only: where the state is to be copied
  PromptPast past;              ///< for the inserts of the request, if the policy learns

  /// The copy that gives a request its state: all layers, all tensors. Precondition: slot and `live` are valid.
  [[nodiscard]] constexpr SlotCopy restore_into(SlotId live) const noexcept { return SlotCopy::whole(slot, live); }
};

/// Whose lookup it is. A policy that learns counts each request once.
enum class Lookup : std::uint8_t {
  request,  ///< a request begins
  again     ///< a request that has been looked up before
};

/// A prefix to keep. Only whole pages are kept; the KV of the tail stays the caller's.
struct PrefixInsert {
  std::span<const Token> tokens;
  std::span<const KvIndex> kv;  ///< one index a token, at least the whole pages of `tokens`
  /// The checkpoint to donate, or none: a slot of the tree's pool that the caller owns, tagged (tag_slot) with
  /// state_tag of the whole pages of `tokens`.
  SlotId slot;
  Namespace name_space;
  std::uint64_t name_tag = 0;  ///< of the caller, the same for each insert of a namespace, 0 for the unnamed one
  /// kv[0, prev_tokens) are the tree's own indices (whole pages, locked since the match that gave them); not read.
  std::int64_t prev_tokens = 0;
  std::int32_t priority = 0;  ///< for the priority policy: a node's priority is the largest of its inserts
  bool chunked = false;       ///< a chunk of a prompt, not a use: counts no hit for lfu and slru
  bool spare = false;         ///< a policy that learns is not told: a new state goes before all that it knows
  /// Empty, or as long as the whole pages of `tokens`: gets the KV indices of the path, whose KV may be other than `kv`
  /// in [prev_tokens, InsertResult::prefix_tokens). It may be `kv` itself.
  std::span<KvIndex> kv_out;
  /// For a policy that learns: `past` (PrefixMatch::past), `hint`, and `tokens`; 0 tokens: the request ends here,
  /// unless chunked. The tree finds the rest itself.
  PromptFacts prompt;
};

struct InsertResult {
  NodeId node;                     ///< the end of the path; the root for less than a page
  std::int64_t prefix_tokens = 0;  ///< tokens that were in the tree before
  bool state_exists = false;       ///< true: the end node keeps its own state and the slot stays the caller's
};

/// How much to free: counts of separate pools, or bytes of one that holds KV and states.
struct EvictDemand {
  std::int64_t tokens = 0;
  std::int64_t states = 0;
  std::int64_t bytes = 0;  ///< by PrefixTreeOptions::memory
};

/// Everything that was freed, whichever demand freed it. A slot that PrefixTreeOptions::on_victim kept is not free.
struct EvictResult {
  std::int64_t tokens = 0;
  std::int64_t states = 0;
  friend constexpr bool operator==(const EvictResult&, const EvictResult&) noexcept = default;
};

/// Which demand a victim is for.
enum class VictimKind : std::uint8_t { tokens, states, bytes };

/// Protected = locked. A state's lock is its own: the state of a node with locked KV may be evictable.
struct TreeSizes {
  std::int64_t evictable_tokens = 0;
  std::int64_t protected_tokens = 0;
  std::int64_t evictable_states = 0;
  std::int64_t protected_states = 0;
  [[nodiscard]] constexpr std::int64_t total_tokens() const noexcept { return evictable_tokens + protected_tokens; }
  [[nodiscard]] constexpr std::int64_t total_states() const noexcept { return evictable_states + protected_states; }
  friend constexpr bool operator==(const TreeSizes&, const TreeSizes&) noexcept = default;
};

/// A view of one node for dumps, tests and statistics. The spans are valid until the tree changes.
struct NodeInfo {
  NodeId id;
  NodeId parent;
  Namespace name_space;
  std::span<const Token> tokens;  ///< the node's own segment
  std::span<const KvIndex> kv;
  std::int64_t end_tokens = 0;  ///< length of the path from the root to the end of the segment
  SlotId slot;                  ///< none: a tombstone, or a node that never had a state
  std::uint32_t full_lock = 0;
  std::int32_t state_lock = 0;
  std::uint32_t children = 0;
  std::uint64_t tick = 0;        ///< of the last use of the KV
  std::uint64_t state_tick = 0;  ///< of the last use of the state; 0 without one
  std::uint64_t created_tick = 0;
  std::uint32_t hits = 0;
  std::int32_t priority = 0;
  [[nodiscard]] bool evictable_leaf() const noexcept { return children == 0 && full_lock == 0; }
};

}  // namespace stateport
