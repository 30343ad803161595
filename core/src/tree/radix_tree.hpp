// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "tree/kv_event_source.hpp"
#include "tree/kv_index_set.hpp"
#include "tree/path_walked.hpp"
#include "tree/prompt_history.hpp"
#include "tree/radix_nodes.hpp"
#include "tree/tree_victims.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::detail {

/// The tree behind PrefixTree, which checks the arguments. It is composed of the nodes (RadixNodes), the order in which
/// they are evicted (TreeVictims) and the observations of a policy that learns (PromptHistory), and is the only one
/// that knows all three. It adds the pool of slots, the clock of uses, locks, sizes, the owned KV indices, and events.
class RadixTree {
 public:
  static constexpr std::uint32_t root = RadixNodes::root;
  static constexpr std::uint32_t none = RadixNodes::none;

  explicit RadixTree(PrefixTreeOptions options);

  PrefixMatch match(std::span<const Token> tokens, const Namespace& name_space, std::span<KvIndex> kv_out,
                    Lookup lookup, std::int64_t request_tokens);
  void set_time(double now_s);
  [[nodiscard]] double now_s() const noexcept { return history_ ? history_->now_s() : now_s_; }
  /// Takes a slot for a request, if needed by evicting a state that is not `answer`'s. None if there is none.
  SlotId take_slot_beside(std::uint32_t answer, Freed& freed);
  InsertResult insert(const PrefixInsert& prefix, Freed& freed);
  /// Adds to `result` as it goes. If memory runs out, every victim is all in `freed` or not touched.
  /// `chosen` may be empty.
  void evict(EvictDemand demand, Freed& freed, EvictResult& result, const std::function<bool(KvIndex)>& chosen);
  std::size_t peek_victims(VictimKind kind, std::span<Victim> out);
  /// `freed`: gets the slot; null: the slot is the caller's, with an empty tag, and the state may be locked.
  void drop_state(std::uint32_t node, Freed* freed);
  /// Evicts the node and those above it as far as they are leaves without locks; else its state, unless that is locked.
  void forget(std::uint32_t node, Freed& freed, EvictResult& result);
  /// See PrefixTree.
  void move_pages(const std::function<std::int32_t(std::int32_t)>& new_page);

  /// Pins the path, and the state that the node has or gets. Not the root.
  void lock(std::uint32_t node) noexcept;
  void unlock(NodeId node) noexcept;
  void touch(std::uint32_t node) noexcept;
  void touch(std::span<const NodeId> nodes) noexcept;
  void reset(Freed& freed);

  [[nodiscard]] const RadixNodes& shape() const noexcept { return nodes_; }
  [[nodiscard]] SlotPool& pool() noexcept { return pool_; }
  [[nodiscard]] const PrefixTreeOptions& options() const noexcept { return options_; }
  [[nodiscard]] const TreeSizes& sizes() const noexcept { return sizes_; }
  [[nodiscard]] std::int64_t grid() const noexcept { return grid_; }
  [[nodiscard]] std::size_t bookkeeping_bytes() const noexcept {
    return nodes_.bytes() + victims_.bytes() + (history_ ? history_->bytes() : 0);
  }

  /// `end_page` is of the nodes.
  [[nodiscard]] NodeInfo node(std::uint32_t index, std::uint32_t end_page) const;
  void check_invariants() const;

 private:
  /// Insert keeps at least this number of nodes in reserve, for the splits of the lookups between two inserts.
  static constexpr std::size_t spare_nodes = 256;

  /// Makes room for an insert of `pages` pages, `new_pages` of them new. Allocates nothing with
  /// PrefixTreeOptions::kv_indices.
  void make_room(std::uint32_t pages, std::uint32_t new_pages);
  void reserve_nodes(std::size_t nodes);
  /// Cuts `node` after `pages` pages; returns the new upper part.
  std::uint32_t split(std::uint32_t node, std::uint32_t pages) noexcept;
  /// Ticks the nodes from the root's child to `node`, parents first; `depth` nodes, at least 1.
  void raise_path(std::uint32_t node, std::uint32_t depth) noexcept {
    tick_ += depth;
    std::uint64_t tick = tick_;
    std::uint32_t at = node;
    do {
      RadixNode& entry = nodes_[at];
      entry.tick = tick--;
      at = entry.parent;
    } while (at != root);
  }
  /// After the ticks of a path to a node below the root were raised. Nodes above its end have children and are not
  /// listed.
  void path_was_used(std::uint32_t end) noexcept {
    if (!TreeVictims::used_in_list(nodes_, end)) victims_.path_was_used(end);
  }

  void check_insert(const PrefixInsert& prefix, std::uint32_t cut_tokens, const RadixWalk& walk);
  /// Adds the pages that were not found, up to `end_page`, below `parent`; returns their last node.
  std::uint32_t add_pages(std::uint32_t parent, const PrefixInsert& prefix, const RadixWalk& found,
                          std::uint32_t end_page) noexcept;
  void adopt(std::uint32_t node, SlotId slot) noexcept;
  void cap_path(std::uint32_t tail, Freed& freed);

  /// A node that victims_ named.
  void evict_node(std::uint32_t node, Freed& freed, EvictResult& result);
  void remove_leaf(std::uint32_t node, Freed& freed, EvictResult& result);
  /// Takes the state from a node that keeps its KV.
  void remove_state(std::uint32_t node, Freed& freed, EvictResult& result);
  /// Takes the state from a node whose listener has been told.
  void release_state(std::uint32_t node, bool keep, Freed& freed, EvictResult& result);
  /// True if the listener keeps the slot.
  [[nodiscard]] bool report_victim(std::uint32_t node, bool whole) const;

  void check_nodes() const;
  void check_states() const;

  PrefixTreeOptions options_;
  std::size_t nodes_max_;  ///< with the root; of a tree that knows its KV indices
  std::int64_t grid_ = 1;
  SlotPool pool_;
  LearningPolicy* learning_;  ///< the policy, if it observes the tree
  RadixNodes nodes_;
  TreeVictims victims_;
  std::optional<PromptHistory> history_;  ///< if the policy learns
  std::uint64_t tick_ = 0;
  double now_s_ = 0;  ///< of a tree without history
  KvIndexSet kv_;
  KvEventSource events_;
  TreeSizes sizes_;
  PathWalked walked_;                  ///< scratch of match and insert
  std::vector<std::uint32_t> path_;    ///< scratch of cap_path
  std::vector<std::uint32_t> peeked_;  ///< scratch of peek_victims
};

/// See PrefixTree::count_unlocked_pages().
void count_unlocked_pages(const RadixTree& tree, std::int32_t extent_pages, std::span<std::int32_t> by_extent);
/// The tag of the state after exactly `tokens`.
[[nodiscard]] StateTag state_tag(std::span<const Token> tokens, const Namespace& name_space,
                                 const PrefixTreeOptions& options) noexcept;
/// The answer of RadixTree::match, without a past; changes nothing.
[[nodiscard]] PrefixMatch peek(RadixTree& tree, std::span<const Token> tokens, const Namespace& name_space);
/// See PrefixTree.
[[nodiscard]] std::vector<NodeInfo> nodes_of(const RadixTree& tree);
/// One line a node, indented by depth; parents come before children.
[[nodiscard]] std::string pretty_print(std::span<const NodeInfo> nodes);

}  // namespace stateport::detail
