// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stateport/core/containers/hash_index.hpp>
#include <stateport/core/containers/prefetch.hpp>
#include <stateport/core/containers/table.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "evict/victim_order.hpp"
#include "tree/kv_event_source.hpp"
#include "tree/namespace_table.hpp"
#include "tree/path_ahead.hpp"
#include "tree/position_keys.hpp"
#include "tree/token_arena.hpp"

namespace stateport::detail {

/// One cache line. A free node is linked through `parent` and has no pages. What an ancestor or the arena knows is not
/// here: the length of the path and the hash of the first page.
struct RadixNode {
  std::uint32_t parent = 0;
  std::uint32_t first_page = 0;  ///< of its segment in the arena
  std::uint32_t pages = 0;
  std::uint32_t children = 0;
  std::uint32_t name_space = 0;
  std::int32_t slot = -1;  ///< a slot, or no_slot, or lost_slot
  std::uint32_t full_lock = 0;
  std::uint32_t generation = 0;
  std::uint32_t older = UINT32_MAX;  ///< neighbours in the list of leaves, if it is there
  std::uint32_t newer = UINT32_MAX;  ///< if it is not there: PathAhead's hint, or none
  std::uint64_t tick = 0;
  std::uint64_t created = 0;
  std::uint32_t hits = 0;
  std::int32_t priority = 0;
};
static_assert(sizeof(RadixNode) == 64, "a step of the walk touches one cache line of nodes");

/// The tree behind PrefixTree, which checks the arguments.
///
/// Every evictable leaf is a candidate of leaves_, every evictable state, by slot, of states_. What is locked, and a
/// node that got children, stays there: it is dropped when it comes up, and offered again when it is eligible again. A
/// policy that draws keeps leaves without a state apart, in bare_.
class RadixTree {
 public:
  static constexpr std::uint32_t root = 0;
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::int32_t no_slot = -1;
  static constexpr std::int32_t lost_slot = -2;  ///< had a state that was evicted

  explicit RadixTree(PrefixTreeOptions options);

  PrefixMatch match(std::span<const Token> tokens, const Namespace& name_space, std::span<KvIndex> kv_out,
                    Lookup lookup, std::int64_t request_tokens);
  void set_time(double now_s);
  [[nodiscard]] bool learns() const noexcept { return learning_ != nullptr; }
  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  /// Takes a slot for a request, if needed by evicting a state that is not `answer`'s. None if there is none.
  SlotId take_slot_beside(std::uint32_t answer, Freed& freed);
  InsertResult insert(const PrefixInsert& prefix, Freed& freed);
  EvictResult evict(EvictDemand demand, Freed& freed);
  std::size_t peek_victims(VictimKind kind, std::span<Victim> out);
  void drop_state(std::uint32_t node, Freed& freed);

  /// Pins the path and the state; true if there is a state.
  bool lock(std::uint32_t node) noexcept;
  void unlock(NodeId node, bool state) noexcept;
  void touch(std::uint32_t node) noexcept;
  void touch(std::span<const NodeId> nodes) noexcept;
  void reset(Freed& freed);

  [[nodiscard]] StateTag state_tag(std::span<const Token> tokens, const Namespace& name_space) const noexcept;
  [[nodiscard]] bool contains(NodeId node) const noexcept {
    return node.index < nodes_.size() && nodes_[node.index].generation == node.generation &&
           (nodes_[node.index].pages > 0 || node.is_root());
  }
  /// Fetches what contains() looks at.
  void fetch(NodeId node) const noexcept {
    if (node.index < nodes_.size()) prefetch(&nodes_[node.index]);
  }
  [[nodiscard]] NodeId id(std::uint32_t index) const noexcept { return {index, nodes_[index].generation}; }

  [[nodiscard]] SlotPool& pool() noexcept { return pool_; }
  [[nodiscard]] const SlotPool& pool() const noexcept { return pool_; }
  [[nodiscard]] const PrefixTreeOptions& options() const noexcept { return options_; }
  [[nodiscard]] const TreeSizes& sizes() const noexcept { return sizes_; }
  [[nodiscard]] std::int64_t grid() const noexcept { return grid_; }
  [[nodiscard]] std::size_t node_count() const noexcept { return live_nodes_; }
  [[nodiscard]] std::size_t bookkeeping_bytes() const noexcept;

  [[nodiscard]] NodeInfo node(std::uint32_t index) const { return describe(index, end_page(index)); }
  [[nodiscard]] std::vector<NodeInfo> nodes() const;
  [[nodiscard]] std::string pretty_print() const;
  void check_invariants() const;

 private:
  /// Insert keeps at least so many nodes in reserve, for the splits of the lookups between two inserts.
  static constexpr std::size_t spare_nodes = 256;

  struct Walk {
    std::uint32_t node = root;      ///< deepest node walked to its end
    std::uint32_t depth = 0;        ///< nodes walked to their end
    std::uint32_t pages = 0;        ///< matched pages
    std::uint32_t cut_node = none;  ///< node on whose edge the walk ended, after cut_pages of it
    std::uint32_t cut_pages = 0;
    std::uint32_t answer = root;  ///< deepest node walked to its end that has a state
    std::uint32_t answer_depth = 0;
    std::uint32_t answer_pages = 0;
    bool lost_state = false;                     ///< a node walked beyond the answer had a state that was evicted
    std::optional<std::uint32_t> missing_child;  ///< the child_hash that nothing was found by
  };

  [[nodiscard]] Walk walk(const Token* tokens, std::uint32_t pages, std::uint32_t name_space) const noexcept;
  /// The child of walk.node that begins with `page`, or none; looked up if it is not `hint`.
  [[nodiscard]] std::uint32_t find_child(Walk& walk, std::uint32_t name_space, const Token* page,
                                         std::uint32_t hint) const noexcept;
  /// On the way down: fetches what lies ahead.
  void look_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& ahead) const noexcept;
  [[nodiscard]] std::uint32_t child_hash(std::uint32_t node) const noexcept;
  [[nodiscard]] std::uint32_t child_hash(std::uint32_t parent, std::uint32_t name_space,
                                         const Token* page) const noexcept;
  [[nodiscard]] bool same_page(const Token* a, const Token* b) const noexcept;
  [[nodiscard]] std::uint32_t common_pages(const Token* a, const Token* b, std::uint32_t pages) const noexcept;
  [[nodiscard]] std::int64_t tokens_of(std::uint32_t pages) const noexcept {
    return std::int64_t{pages} * options_.page_size;
  }
  /// Whether the slot of a node that ends after `pages` holds a state of so many tokens, by its tag. What tokens they
  /// are was checked when the tree took it.
  [[nodiscard]] bool holds_state_at(std::uint32_t node, std::uint32_t pages) const noexcept;
  /// Moves the answer up to a node whose state is its own: a wrong state is never answered, whatever went wrong.
  void refuse_wrong_states(Walk& walk) const noexcept;
  [[nodiscard]] PrefixMatch describe(const Walk& walk, std::uint32_t kv_node) const noexcept;

  [[nodiscard]] bool node_at_hand() const noexcept;
  void reserve_nodes(std::size_t nodes);
  std::uint32_t take_node() noexcept;
  /// Cuts `node` after `pages` pages; returns the new upper part.
  std::uint32_t split(std::uint32_t node, std::uint32_t pages) noexcept;

  /// The candidates of leaves_, as VictimOrder asks for them.
  template <class Tree>
  struct Leaves {
    Tree& tree;
    [[nodiscard]] auto& node(std::uint32_t index) const noexcept { return tree.nodes_[index]; }
    [[nodiscard]] bool eligible(std::uint32_t index) const noexcept {
      return tree.is_victim_leaf(index) && (node(index).slot >= 0 || !tree.draws());
    }
    [[nodiscard]] VictimKey key(std::uint32_t index) const noexcept { return tree.key(index); }
  };
  /// Those of bare_.
  struct BareLeaves {
    const RadixTree& tree;
    [[nodiscard]] bool eligible(std::uint32_t index) const noexcept {
      return tree.is_victim_leaf(index) && tree.nodes_[index].slot < 0;
    }
    [[nodiscard]] VictimKey key(std::uint32_t index) const noexcept { return tree.key(index); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const noexcept { return tree.nodes_[index].tick; }
  };
  /// Those of states_, by slot.
  struct States {
    const RadixTree& tree;
    [[nodiscard]] bool eligible(std::uint32_t slot) const noexcept { return tree.is_victim_state(slot); }
    [[nodiscard]] VictimKey key(std::uint32_t slot) const noexcept { return tree.key(tree.owner(slot)); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t slot) const noexcept { return tree.state_ticks_[slot]; }
  };
  [[nodiscard]] Leaves<RadixTree> leaves() noexcept { return {*this}; }
  [[nodiscard]] Leaves<const RadixTree> leaves() const noexcept { return {*this}; }
  [[nodiscard]] BareLeaves bare_leaves() const noexcept { return {*this}; }
  [[nodiscard]] States states() const noexcept { return {*this}; }
  [[nodiscard]] bool draws() const noexcept { return leaves_.strategy() == VictimStrategy::draw; }
  [[nodiscard]] std::uint32_t owner(std::uint32_t slot) const noexcept {
    return static_cast<std::uint32_t>(pool_.owner(SlotId{static_cast<std::int32_t>(slot)}));
  }

  /// Precondition: `tick` is the largest so far, if the node is a leaf.
  void touch_node(std::uint32_t node, std::uint64_t tick) noexcept {
    nodes_[node].tick = tick;
    leaves_.used(leaves(), node);
  }
  void rank_path_again(std::uint32_t node) noexcept;
  /// Ticks the nodes from the root's child to `node`, parents first; `depth` nodes.
  void touch_path(std::uint32_t node, std::uint32_t depth) noexcept {
    tick_ += depth;
    std::uint64_t tick = tick_;
    for (std::uint32_t at = node; at != root; at = nodes_[at].parent) nodes_[at].tick = tick--;
    path_was_used(node);
  }
  /// After the ticks of a path were raised. What lies above its end has children and is not listed.
  void path_was_used(std::uint32_t end) noexcept {
    if (end == root || LinkedRecency::used(leaves(), end)) return;
    if (leaves_.keys_may_shrink()) rank_path_again(end);
  }
  /// On the way up a path, so that the next walk has hints: `below` knows the nodes that were passed.
  void note_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& below) noexcept {
    const std::uint32_t ahead = below.at(depth);
    if (ahead != none && !listed(node)) nodes_[node].newer = ahead;
    below.note(depth, node);
  }
  void touch_state(std::uint32_t node) noexcept;

  void check_insert(const PrefixInsert& prefix, std::uint32_t cut_tokens, const Walk& walk);
  void check_new_indices(std::span<const KvIndex> kv);
  void prepare_event(const PrefixInsert& prefix, const Walk& walk, std::uint32_t pages);
  void count_use(std::uint32_t node, const PrefixInsert& prefix) noexcept;
  /// For the pages that were not found, up to `end_page`.
  std::uint32_t add_leaf(std::uint32_t parent, const PrefixInsert& prefix, std::uint32_t name_space, const Walk& found,
                         std::uint32_t end_page) noexcept;
  /// True if `node` had no state and took the slot.
  bool adopt(std::uint32_t node, SlotId slot) noexcept;
  void cap_path(std::uint32_t tail, Freed& freed);

  [[nodiscard]] bool is_victim_leaf(std::uint32_t node) const noexcept {
    const RadixNode& entry = nodes_[node];
    return entry.pages > 0 && entry.children == 0 && entry.full_lock == 0;
  }
  [[nodiscard]] bool is_victim_state(std::uint32_t slot) const noexcept;
  [[nodiscard]] VictimFacts facts(std::uint32_t node) const noexcept;
  /// Adds the lengths that a LearningPolicy ranks by.
  void add_lengths(std::uint32_t node, VictimFacts& facts) const noexcept;
  /// The end of the longest shorter prefix with a state.
  [[nodiscard]] std::int64_t fallback_tokens(std::uint32_t node) const noexcept;
  [[nodiscard]] VictimKey key(std::uint32_t node) const noexcept { return options_.policy->key(facts(node)); }
  [[nodiscard]] bool listed(std::uint32_t node) const noexcept { return nodes_[node].older != none; }
  /// A leaf that nothing locks: new, unlocked, or left alone by its last child.
  void add_candidate(std::uint32_t node) noexcept;
  void drop_candidate(std::uint32_t node) noexcept {
    leaves_.erase(leaves(), node);
    if (draws()) bare_.erase(bare_leaves(), node);
  }
  [[nodiscard]] std::optional<std::uint32_t> next_leaf();
  [[nodiscard]] std::optional<std::uint32_t> next_state();
  /// A leaf or a node whose state goes, whatever the policy gives up first.
  [[nodiscard]] std::optional<std::uint32_t> next_of_bytes();
  /// The page of the arena that ends a position on the path to `node`, which moves up to the node that has the page.
  [[nodiscard]] std::uint32_t position_page(std::uint32_t& node, std::uint32_t position) const noexcept;
  /// Keys for the positions of a new leaf.
  void name_positions(std::uint32_t leaf, const PrefixInsert& prefix) noexcept;
  /// Tells the policy of a request.
  [[nodiscard]] PromptPast past_of(std::span<const Token> tokens, std::int64_t request_tokens,
                                   const Namespace& name_space, const Walk& found) noexcept;
  void tell_kept(std::uint32_t node, const PrefixInsert& prefix, bool known) noexcept;
  /// A node that next_leaf, next_state or next_of_bytes named.
  void evict_node(std::uint32_t node, Freed& freed, EvictResult& result);
  void remove_leaf(std::uint32_t node, Freed& freed, EvictResult& result);
  void fetch_pages(std::uint32_t node) const noexcept;
  /// Takes the state from a node that keeps its KV.
  void remove_state(std::uint32_t node, Freed& freed, EvictResult& result);
  /// Takes the state from a node whose listener has been told.
  void release_state(std::uint32_t node, bool keep, Freed& freed, EvictResult& result);
  /// What goes if `node` does: its state alone, or all of it.
  [[nodiscard]] Victim victim(std::uint32_t node, bool whole) const noexcept;
  /// True if the listener keeps the slot.
  [[nodiscard]] bool tell_victim(std::uint32_t node, bool whole) const;
  template <class Order, class Source>
  std::size_t peek(Order& order, const Source& source, std::span<Victim> out, bool by_slot);
  void own_indices(std::span<const KvIndex> kv, bool own) noexcept;
  /// Precondition: the number of indices is known.
  [[nodiscard]] bool owned_index(KvIndex index) const noexcept;

  /// By node: pages from the root to the end of its segment.
  [[nodiscard]] std::vector<std::uint32_t> path_ends() const;
  [[nodiscard]] std::uint32_t end_page(std::uint32_t node) const noexcept;
  [[nodiscard]] NodeInfo describe(std::uint32_t node, std::uint32_t end_page) const;
  void check_list() const;
  void check_policy() const;
  void check_positions(std::uint32_t node, std::vector<Token>& scratch) const;
  void check_nodes(std::vector<std::uint32_t>& children, std::vector<std::uint64_t>& lock_sums,
                   std::vector<bool>& used_pages) const;
  void check_node(std::uint32_t node) const;
  void check_sizes() const;
  void check_indices() const;
  void check_states() const;

  PrefixTreeOptions options_;
  std::int64_t grid_ = 1;
  SlotPool pool_;
  Table<RadixNode> nodes_;  ///< reserved to node_capacity_
  std::size_t node_capacity_ = 0;
  std::size_t live_nodes_ = 0;
  std::uint32_t free_head_ = none;
  std::uint64_t tick_ = 0;
  TokenArena arena_;
  KvEventSource events_;
  HashIndex children_{60};  ///< nodes by a hash of (parent, namespace, first page): 13 bytes a node
  NamespaceTable names_;
  TreeSizes sizes_;
  LearningPolicy* learning_ = nullptr;     ///< the policy, if it observes what happens
  VictimOrder<LinkedRecency> leaves_;      ///< by node; with a state, if the policy draws
  VictimOrder<> bare_;                     ///< by node: leaves without a state, if the policy draws
  VictimOrder<> states_;                   ///< by slot
  std::optional<PositionKeys> positions_;  ///< if the policy observes prompts
  std::vector<std::uint32_t> path_pages_;  ///< by node, if the policy learns: pages from the root to its end
  double now_s_ = 0;
  bool told_time_ = false;
  std::vector<std::uint64_t> state_ticks_;    ///< by slot
  std::vector<std::uint64_t> owned_indices_;  ///< bit per KV index, if their number is known
  std::vector<std::uint32_t> path_;           ///< scratch of cap_path
  std::vector<std::uint32_t> peeked_;         ///< scratch of peek_victims
};

}  // namespace stateport::detail
