// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "containers/hash_index.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "tree/namespace_table.hpp"
#include "tree/path_ahead.hpp"
#include "tree/path_walked.hpp"
#include "tree/token_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Names the tree where an invariant does not hold.
inline constexpr const char* structure = "PrefixTree";

/// One cache line. A free node is linked through `parent` and has no pages. Facts that an ancestor or the arena has are
/// not here: the length of the path and the hash of the first page.
struct RadixNode {
  static constexpr std::int32_t no_slot = -1;
  static constexpr std::int32_t lost_slot = -2;  ///< had a state that was evicted
  /// A lock of a node without a state counts for the state that it gets: each lowers its slot by this.
  static constexpr std::int32_t state_lock = 2;

  std::uint32_t parent = 0;
  std::uint32_t first_page = 0;  ///< of its segment in the arena
  std::uint32_t pages = 0;
  std::uint32_t children = 0;
  std::uint32_t name_space = 0;
  std::int32_t slot = no_slot;  ///< or lost_slot; less state_lock for each lock that there is without a state
  std::uint32_t full_lock = 0;
  std::uint32_t generation = 0;
  // Neighbours in the list of leaves, if it is there. Otherwise hints (PathAhead), or none: `newer` is the far one,
  // `older` the near one plus `unlisted`.
  std::uint32_t older = UINT32_MAX;
  std::uint32_t newer = UINT32_MAX;
  std::uint64_t tick = 0;
  std::uint64_t created = 0;
  std::uint32_t hits = 0;
  std::int32_t priority = 0;

  /// Precondition: without a state. With one, its slot knows.
  [[nodiscard]] std::int32_t state_locks() const noexcept { return ~slot / state_lock; }
  [[nodiscard]] bool lost_state() const noexcept { return slot < 0 && ~slot % state_lock == ~lost_slot; }
};
static_assert(sizeof(RadixNode) == 64, "a step of the walk touches one cache line of nodes");

/// How far a key is in the tree.
struct RadixWalk {
  std::uint32_t node = 0;               ///< deepest node walked to its end; the root if none was
  std::uint32_t depth = 0;              ///< nodes walked to their end
  std::uint32_t pages = 0;              ///< matched pages
  std::uint32_t cut_node = UINT32_MAX;  ///< node on whose edge the walk ended, after cut_pages of it
  std::uint32_t cut_pages = 0;
  std::uint32_t answer = 0;  ///< deepest node walked to its end that has a state
  std::uint32_t answer_depth = 0;
  std::uint32_t answer_pages = 0;
  bool lost_state = false;                     ///< a node walked beyond the answer had a state that was evicted
  std::optional<std::uint32_t> missing_child;  ///< the child_hash that nothing was found by
};

/// The shape of a prefix tree: nodes by index, the table that finds children, and the tokens and KV indices of all
/// segments. Of slots it knows only whether a node has one, has none or had one.
///
/// Nodes do not move once they are reserved. Not thread-safe.
class RadixNodes {
 public:
  static constexpr std::uint32_t root = 0;
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::uint32_t unlisted = std::uint32_t{1} << 31;  ///< nodes are below

  /// `keeps_ends`: end_page() is O(1), for 4 bytes a node. `pages_max`: see TokenArena.
  RadixNodes(const PrefixTreeOptions& options, bool keeps_ends, std::size_t pages_max);

  [[nodiscard]] RadixNode& operator[](std::uint32_t node) noexcept { return nodes_[node]; }
  [[nodiscard]] const RadixNode& operator[](std::uint32_t node) const noexcept { return nodes_[node]; }
  /// Indices in use or free, with the root.
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(nodes_.size()); }
  [[nodiscard]] std::size_t live() const noexcept { return live_; }  ///< without the root
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] NodeId id(std::uint32_t node) const noexcept { return {node, nodes_[node].generation}; }
  [[nodiscard]] bool contains(NodeId node) const noexcept {
    return node.index < nodes_.size() && nodes_[node.index].generation == node.generation &&
           (nodes_[node.index].pages > 0 || node.is_root());
  }
  /// Fetches the memory that contains() reads.
  void fetch(NodeId node) const noexcept {
    if (node.index < nodes_.size()) prefetch(&nodes_[node.index]);
  }
  /// Of a list of leaves; the root begins and ends it.
  [[nodiscard]] bool listed(std::uint32_t node) const noexcept { return nodes_[node].older < unlisted; }

  [[nodiscard]] std::int64_t tokens_of(std::uint32_t pages) const noexcept { return std::int64_t{pages} * page_size_; }
  [[nodiscard]] std::span<const Token> tokens(std::uint32_t node) const noexcept {
    return {arena_.tokens(nodes_[node].first_page), static_cast<std::size_t>(tokens_of(nodes_[node].pages))};
  }
  [[nodiscard]] std::span<const KvIndex> kv(std::uint32_t node) const noexcept {
    return {arena_.kv(nodes_[node].first_page), static_cast<std::size_t>(tokens_of(nodes_[node].pages))};
  }
  /// Pages from the root to the end of a node. Without kept ends O(nodes of the path).
  [[nodiscard]] std::uint32_t end_page(std::uint32_t node) const noexcept {
    if (!ends_.empty()) return ends_[node];
    std::uint32_t pages = 0;
    for (; node != root; node = nodes_[node].parent) pages += nodes_[node].pages;
    return pages;
  }
  /// The page of the arena that ends after `pages` pages of the path to `node`, which moves up to the node that has it.
  [[nodiscard]] std::uint32_t page_on_path(std::uint32_t& node, std::uint32_t pages) const noexcept {
    while (end_page(nodes_[node].parent) >= pages) node = nodes_[node].parent;
    return nodes_[node].first_page + pages - 1 - end_page(nodes_[node].parent);
  }

  /// Notes in `path` the nodes that it goes down.
  [[nodiscard]] RadixWalk walk(const Token* tokens, std::uint32_t pages, std::uint32_t name_space,
                               PathWalked& path) const noexcept;
  /// On the way up a path: fetches the node some levels later.
  void fetch_above(std::uint32_t depth, const PathWalked& path) const noexcept { prefetch(&nodes_[path.above(depth)]); }
  /// On the way up a path, so that the next walk has hints: `below` knows the nodes that were passed.
  void note_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& below) noexcept {
    const std::uint32_t far = below.at(PathAhead::far(depth));
    const std::uint32_t near = below.at(PathAhead::near(depth));
    if (!listed(node)) {
      if (far != none) nodes_[node].newer = far;
      if (near != none) nodes_[node].older = near | unlisted;
    }
    below.note(depth, node);
  }

  // All that allocates comes first: these make room for `nodes` nodes in all, or for a segment of one leaf.
  void reserve(std::size_t nodes);
  void reserve_run(std::uint32_t pages) { arena_.reserve_run(pages); }
  [[nodiscard]] bool node_at_hand() const noexcept { return free_head_ != none || nodes_.size() < capacity_; }

  /// A leaf for these tokens with their KV indices, or for their first pages if the arena has no run as long. `hash` is
  /// RadixWalk::missing_child, if that is known. Precondition: room for a node and a page.
  std::uint32_t add_leaf(std::uint32_t parent, std::uint32_t name_space, std::optional<std::uint32_t> hash,
                         std::span<const Token> tokens, std::span<const KvIndex> kv) noexcept;
  /// Cuts `node` after `pages` pages; returns the new upper part, which has its locks and no state. Precondition: a
  /// node is at hand.
  std::uint32_t split(std::uint32_t node, std::uint32_t pages) noexcept;
  /// The facts by which remove() finds a leaf in the table of children, fetched ahead.
  [[nodiscard]] std::uint32_t prepare_removal(std::uint32_t leaf) const noexcept;
  /// `prepared` is of prepare_removal().
  void remove(std::uint32_t leaf, std::uint32_t prepared) noexcept;
  /// Fetches the memory that prepare_removal() and remove() read.
  void fetch_pages(std::uint32_t node) const noexcept;
  void clear() noexcept;

  [[nodiscard]] NamespaceTable& names() noexcept { return names_; }
  [[nodiscard]] const NamespaceTable& names() const noexcept { return names_; }
  [[nodiscard]] const TokenArena& arena() const noexcept { return arena_; }
  /// Of nodes that were used, and of all tables, without tokens and KV indices.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return nodes_.size() * sizeof(RadixNode) + children_.bytes() + names_.bytes() +
           ends_.size() * sizeof(std::uint32_t);
  }
  /// By node: end_page(), computed from scratch.
  [[nodiscard]] std::vector<std::uint32_t> ends() const;
  /// Throws std::logic_error naming the first violation. O(nodes + pages).
  void check_invariants() const;

 private:
  [[nodiscard]] std::uint32_t find_child(RadixWalk& walk, std::uint32_t name_space, const Token* page,
                                         std::uint32_t hint) const noexcept;
  void look_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& ahead) const noexcept;
  [[nodiscard]] std::uint32_t child_hash(std::uint32_t node) const noexcept;
  [[nodiscard]] std::uint32_t child_hash(std::uint32_t parent, std::uint32_t name_space,
                                         const Token* page) const noexcept;
  std::uint32_t take() noexcept;
  void check_node(std::uint32_t node) const;
  void check_links() const;

  std::int32_t page_size_;
  std::uint64_t hash_seed_;
  Table<RadixNode> nodes_;  ///< reserved to capacity_
  std::size_t capacity_ = 0;
  std::size_t live_ = 0;
  std::uint32_t free_head_ = none;
  TokenArena arena_;
  HashIndex children_{60};  ///< nodes by a hash of (parent, namespace, first page): 13 bytes a node
  NamespaceTable names_;
  bool keeps_ends_;
  Table<std::uint32_t> ends_;  ///< by node, if they are kept
};

}  // namespace stateport::detail
