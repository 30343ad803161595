// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stateport {
namespace detail {
class RadixTree;
}

/// A pin on a path of a PrefixTree: while it lives, the KV of the path from the root to its node is not evicted, nor
/// is the state of the node, be it there when the node is locked or come later.
///
/// Move-only: a double unlock cannot be written. A handle may outlive reset() and the tree itself; it then releases
/// nothing. Not thread-safe, like its tree.
class PrefixLock {
 public:
  PrefixLock() noexcept = default;
  PrefixLock(PrefixLock&& other) noexcept : tree_(std::move(other.tree_)), node_(std::exchange(other.node_, {})) {
    other.tree_.reset();
  }
  PrefixLock& operator=(PrefixLock&& other) noexcept {
    if (this != &other) {
      release();
      tree_ = std::move(other.tree_);
      other.tree_.reset();
      node_ = std::exchange(other.node_, {});
    }
    return *this;
  }
  PrefixLock(const PrefixLock&) = delete;
  PrefixLock& operator=(const PrefixLock&) = delete;
  ~PrefixLock() { release(); }

  /// Unlocks; without effect on an empty handle. O(nodes of the path).
  void release() noexcept;

  /// The locked node; the root, which needs no lock, for an empty handle too.
  [[nodiscard]] NodeId node() const noexcept { return node_; }

 private:
  friend class PrefixTree;
  PrefixLock(std::weak_ptr<detail::RadixTree> tree, NodeId node) noexcept : tree_(std::move(tree)), node_(node) {}

  std::weak_ptr<detail::RadixTree> tree_;
  NodeId node_;
};

/// Finds cached prefixes by tokens: a radix tree whose nodes own the KV indices of their segment and at most one
/// state slot, the state at the end of the segment. KV and states have independent locks, sizes and recency.
///
///     KV and state ── evict a state ──► tombstone (KV alone) ── insert ──► KV and state again
///          └────────── evict KV: a leaf goes whole, its state with it ──────────► gone
///
/// A state cannot be split: when a segment is split, its upper part has no state. After the MambaRadixCache of SGLang,
/// with its defects removed. Answers depend on the sequence of calls alone, so that all ranks of a group decide alike.
///
/// Bad input throws InvalidArgument and changes nothing. Not thread-safe.
class PrefixTree {
 public:
  using Options = PrefixTreeOptions;

  /// Throws InvalidArgument for page_size < 1, chunk_size < 1, slots < 0, a negative limit other than -1,
  /// position_tokens < 1, a cost of memory < 1, options that make_eviction_policy refuses, or a policy that belongs to
  /// another cache.
  explicit PrefixTree(Options options);
  ~PrefixTree();
  PrefixTree(PrefixTree&&) noexcept;
  PrefixTree& operator=(PrefixTree&&) noexcept;

  /// Finds the deepest node with a state on the path of `tokens`. Marks the path down to it and its state as used now.
  /// Splits the edge on which the walk ended, if a spare node is there (insert keeps some). Writes the KV indices of
  /// the usable tokens to `kv_out`, which is empty (not wanted) or at least as long as `tokens`. A state counts only if
  /// its tag has the token count and the layout of its node. `request_tokens` is for a policy that learns: the length
  /// of the prompt, of which `tokens` is the part that the request may continue from; 0: `tokens` is the whole prompt.
  /// O(tokens); allocates nothing.
  PrefixMatch match(std::span<const Token> tokens, const Namespace& name_space = {}, std::span<KvIndex> kv_out = {},
                    Lookup lookup = Lookup::request, std::int64_t request_tokens = 0);

  /// The answer of match(), without a past. Changes nothing, no recency and no edge. O(tokens); allocates nothing.
  [[nodiscard]] PrefixMatch peek(std::span<const Token> tokens, const Namespace& name_space = {}) const;

  /// Sets the clock of a policy that learns, in seconds: the time of the calls that follow. If it is never called, the
  /// clock advances by a second with each request. Throws InvalidArgument for a time that is not finite or before the
  /// last one.
  void set_time(double now_s);

  /// match() for a request that will start from the state. `live_slot` is its working slot. If it is none, a hit takes
  /// one from the pool; if no slot is free, it first evicts one state other than the matched one. If none can be
  /// evicted, the answer is a miss with the reason locked_pool, and branching_position as it was found. A miss takes no
  /// slot. `request_tokens` as for match().
  PrefixMatch match_with_live_slot(std::span<const Token> tokens, const Namespace& name_space,
                                   std::span<KvIndex> kv_out, SlotId live_slot, Freed& freed,
                                   std::int64_t request_tokens = 0);

  /// Keeps a prefix. If its end node has no state, the node adopts the slot. `freed` gets the caller's indices
  /// kv[prev_tokens, prefix_tokens), which the tree had already, and the slots that max_states_per_path dropped.
  /// Allocates nothing with PrefixTreeOptions::kv_indices, but for `freed`. Running out of memory changes nothing.
  /// O(tokens), amortised.
  InsertResult insert(const PrefixInsert& prefix, Freed& freed);

  /// Evicts until the demand is met, or until all that is left is locked. May free more than demanded, by up to a leaf.
  ///
  /// 1. For `tokens`: leaves in the order of the policy, each with its KV and its state.
  /// 2. For `states`: states, least recently used first. An unlocked leaf is removed with its KV, any other node keeps
  ///    its KV.
  /// 3. For `bytes`: leaves as in 1; states as in 2 once no leaf is left.
  ///
  /// A policy that ranks states (hix, gdsf) also chooses the states of 2, and in 3 compares leaves with states. Under
  /// such a policy leaves without a state are evicted first, because no request can continue from them.
  ///
  /// If memory for `freed` runs out, the call stops and returns what it has evicted, all of it in `freed`. If it has
  /// evicted nothing, it throws std::bad_alloc.
  ///
  /// A leaf costs O(1) for lru and O(log n) for other orders, a state O(log n), hix O(draws) for either: amortised over
  /// touches and locks, however many nodes are locked.
  ///
  /// `chosen`: only victims for which `chosen(kv)` is true of the KV index at the end of their node, used longest ago
  /// first. The policy does not choose them; each costs O(nodes), or O(slots) for a state.
  EvictResult evict(EvictDemand demand, Freed& freed, const std::function<bool(KvIndex)>& chosen = nullptr);

  /// Writes the next victims of evict() for one kind of demand, in order, and returns how many there are, at most
  /// out.size(). Changes nothing, neither recency nor draws. The ranks are those of now: a node that becomes a leaf, or
  /// changes its rank, when an earlier victim is gone is not foreseen. Costs as much as evicting them, and O(nodes of
  /// the path) for each.
  [[nodiscard]] std::size_t peek_victims(VictimKind kind, std::span<Victim> out);

  /// Removes the state of a node, which keeps its KV; the slot returns to the pool. Throws InvalidArgument for a
  /// node that has been evicted, has no state, or whose state is locked. O(nodes of the path).
  void drop_state(NodeId node, Freed& freed);
  /// The node with the state in this slot loses it, locked or not, and keeps its KV. The slot is the caller's, with an
  /// empty tag. Throws InvalidArgument for a slot that is not the tree's. O(locks).
  void drop_state(SlotId slot);

  /// Counts the pages of KV of unlocked nodes: by_extent[e] becomes their number in the pages
  /// [e * extent_pages, (e + 1) * extent_pages). Page p has the KV indices [p * page_size, (p + 1) * page_size).
  /// Precondition: an entry for each page that the tree has. O(nodes + pages).
  void count_unlocked_pages(std::int32_t extent_pages, std::span<std::int32_t> by_extent) const;
  /// Moves the KV of unlocked nodes: page p lies in the page new_page(p) from now on, which is p, or a page that the
  /// caller owned so far. Precondition: KV indices are whole pages. O(nodes + pages).
  void move_pages(const std::function<std::int32_t(std::int32_t)>& new_page);
  /// Evicts the states in closed slots, but for locked ones; KV stays. The policy does not choose these victims, and
  /// learns nothing from them. O(slots).
  EvictResult evict_closed_states(Freed& freed);

  /// Evicts all nodes and states of the chosen namespaces but for locked ones. `chosen` is asked by the
  /// PrefixInsert::name_tag of their inserts. The policy does not choose these victims. `end`: only of the path to this
  /// node, from its end on; the root: of all. Refuses a node that has been evicted. O(nodes), or O(nodes of the path).
  EvictResult forget(const std::function<bool(std::uint64_t)>& chosen, Freed& freed, NodeId end = {});

  /// Pins the path to `node`, and the state that it has or gets. Refuses a node that has been evicted. The root is
  /// never evicted: locking it locks nothing. O(nodes of the path).
  [[nodiscard]] PrefixLock lock(NodeId node);

  /// Marks the path to `node` and its state as used now, as a match that answers `node` does. A policy that learns does
  /// not count it as a request. O(nodes of the path).
  void touch(NodeId node);
  /// The same for each node in turn, all or none. Faster than single calls, because the cache misses overlap.
  void touch(std::span<const NodeId> nodes);

  /// Takes slots for the caller, those that have been free longest first, all or nothing; and gives slots of the caller
  /// back.
  [[nodiscard]] bool allocate_slots(std::span<SlotId> out) noexcept;
  void release_slots(std::span<const SlotId> slots);
  /// Take slots out of use and back: see SlotPool::close() and open().
  void close_slots(std::span<const NumberRange> ranges);
  void open_slots(std::int32_t first, std::int32_t count);
  /// The tag of the state after exactly `tokens`, which a checkpoint must carry to be inserted there. O(tokens).
  [[nodiscard]] StateTag state_tag(std::span<const Token> tokens, const Namespace& name_space = {}) const;
  /// Tells the content of a slot of the caller once the copy just enqueued has run.
  void tag_slot(SlotId slot, const StateTag& tag);
  [[nodiscard]] const SlotPool& slots() const noexcept;
  /// Whether a hit's slot still holds its state (it does while the hit is locked). O(1).
  [[nodiscard]] TagCheck check_restore(const PrefixMatch& hit) const noexcept;

  [[nodiscard]] bool contains(NodeId node) const noexcept;
  [[nodiscard]] const TreeSizes& sizes() const noexcept;
  [[nodiscard]] std::size_t node_count() const noexcept;  ///< without the root
  /// Bytes of nodes, tables of children and names, and victim order, beside tokens, KV indices and the slot pool.
  [[nodiscard]] std::size_t bookkeeping_bytes() const noexcept;
  [[nodiscard]] std::int32_t page_size() const noexcept;
  [[nodiscard]] std::int64_t grid() const noexcept;        ///< lcm(chunk_size, page_size)
  [[nodiscard]] std::int64_t track_step() const noexcept;  ///< max(chunk_size, page_size)

  /// Forgets everything. All KV indices and slots come back in `freed`: the slots belong to the caller, who releases
  /// them. Locks that are still held release nothing later.
  void reset(Freed& freed);

  /// One node. Throws InvalidArgument for the root and for a node that has been evicted. O(nodes of the path).
  [[nodiscard]] NodeInfo node(NodeId node) const;
  /// All nodes, parents before children. For dumps and tests. O(n), allocates.
  [[nodiscard]] std::vector<NodeInfo> nodes() const;
  /// One line a node, indented by depth.
  [[nodiscard]] std::string pretty_print() const;
  /// Recounts everything from scratch; throws std::logic_error naming the first violation.
  void check_invariants() const;

 private:
  std::shared_ptr<detail::RadixTree> impl_;
};

}  // namespace stateport
