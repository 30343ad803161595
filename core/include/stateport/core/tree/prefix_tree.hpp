// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/tree/prefix_lock.hpp>
#include <stateport/core/tree/prefix_tree_options.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stateport {

/// Finds cached prefixes by tokens: a radix tree whose nodes own the KV indices of their segment and at most one
/// state slot, the state at the end of the segment. KV and states have independent locks, sizes and recency.
///
///     KV and state ── evict a state ──► tombstone (KV alone) ── insert ──► KV and state again
///          └────────── evict KV: a leaf goes whole, its state with it ──────────► gone
///
/// A state cannot be split: when a segment is, the upper part has none. After the MambaRadixCache of SGLang, with its
/// defects removed. All answers depend on the sequence of calls alone, so that every rank of a group decides alike.
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

  /// The deepest node with a state on the path of `tokens`. Refreshes the path down to it and its state; splits the
  /// edge on which the walk ended, if a node is at hand (insert keeps some in reserve). Writes the KV indices of the
  /// usable tokens to `kv_out`, which is empty (not wanted) or at least as long as `tokens`. A state whose tag has
  /// another token count or layout than its node is no state. A policy that learns also hears of `request_tokens`, the
  /// length of a prompt of which `tokens` are what the request may continue from; 0: they are all.
  /// O(tokens); allocates nothing.
  PrefixMatch match(std::span<const Token> tokens, const Namespace& name_space = {}, std::span<KvIndex> kv_out = {},
                    Lookup lookup = Lookup::request, std::int64_t request_tokens = 0);

  /// The clock of a policy that learns, in seconds; before each call whose time it is. Without it every request counts
  /// for a second. Throws InvalidArgument for a time that is not finite or before the last one.
  void set_time(double now_s);

  /// match() for a request that is to start from the state: `live_slot` is its working slot, or none: then one is
  /// taken from the pool, if needed by evicting one state other than the matched one. If that fails too the answer is
  /// a miss with reason locked_pool and branching_position as it was found. A miss takes no slot.
  PrefixMatch match_with_live_slot(std::span<const Token> tokens, const Namespace& name_space,
                                   std::span<KvIndex> kv_out, SlotId live_slot, Freed& freed);

  /// Keeps a prefix. The caller's duplicate indices kv[prev_tokens, prefix_tokens) come back in `freed`, and the slots
  /// that max_states_per_path dropped. A node without a state adopts the slot. O(tokens), amortised.
  InsertResult insert(const PrefixInsert& prefix, Freed& freed);

  /// Frees at least what is demanded, or all that is not locked. First leaves in policy order, KV and state together,
  /// until the tokens suffice; then states, least recently used first: an unlocked leaf goes whole, any other node
  /// keeps its KV; then for bytes leaves, and states if no leaf is left. May over-deliver by one leaf. However many
  /// nodes are locked, a leaf costs O(1) for lru, else O(log n), a state O(log n), amortised over touches and locks.
  /// A policy that ranks states (hix, gdsf) chooses the states too, and for bytes decides between leaves and states;
  /// leaves without a state, which no request can continue from, go first. A victim costs hix O(draws).
  EvictResult evict(EvictDemand demand, Freed& freed);

  /// Writes what evict() would give up next for one kind of demand, in order, and answers how much that is, at most
  /// out.size(). Changes nothing, recency and draws included. A node that would become a leaf, or would be ranked
  /// otherwise, once the victims before it are gone is not foreseen. Costs what evicting them costs, and O(nodes of the
  /// path) for each.
  [[nodiscard]] std::size_t peek_victims(VictimKind kind, std::span<Victim> out);

  /// Gives up the state of a node, which keeps its KV; the slot goes back to the pool. Throws InvalidArgument for a
  /// node that has been evicted, has no state, or whose state is locked. O(nodes of the path).
  void drop_state(NodeId node, Freed& freed);

  /// Pins the path to `node`, and its state if it has one. Refuses a node that has been evicted. The root is never
  /// evicted: locking it locks nothing. O(nodes of the path).
  [[nodiscard]] PrefixLock lock(NodeId node);
  [[nodiscard]] PrefixLock lock(const PrefixMatch& hit) { return lock(hit.node); }

  /// Refreshes the path to `node` and its state, as a match that answers `node` would. That is recency alone: a policy
  /// that learns hears of no request. O(nodes of the path).
  void touch(NodeId node);
  /// The same for each node in turn, all or none: their cache misses overlap, so a step touches its requests at once.
  void touch(std::span<const NodeId> nodes);

  /// Slots that the caller owns: taken from the longest free, all or nothing; given back unless the tree owns them.
  [[nodiscard]] bool allocate_slots(std::span<SlotId> out) noexcept;
  void release_slots(std::span<const SlotId> slots);
  /// The tag of the state after exactly `tokens`: what a checkpoint must carry to be inserted there. O(tokens).
  [[nodiscard]] StateTag state_tag(std::span<const Token> tokens, const Namespace& name_space = {}) const;
  /// Says what a slot of the caller will hold once the copy just enqueued has run.
  void tag_slot(SlotId slot, const StateTag& tag);
  [[nodiscard]] const SlotPool& slots() const noexcept;
  /// Whether a hit's slot still holds its state (it does while the hit is locked). O(1).
  [[nodiscard]] TagCheck check_restore(const PrefixMatch& hit) const noexcept;

  [[nodiscard]] bool contains(NodeId node) const noexcept;
  [[nodiscard]] const TreeSizes& sizes() const noexcept;
  [[nodiscard]] std::size_t node_count() const noexcept;  ///< without the root
  /// Bytes of nodes, child table and victim order, beside tokens, KV indices and the slot pool.
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
