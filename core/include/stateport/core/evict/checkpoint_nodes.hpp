// SPDX-License-Identifier: Apache-2.0
#pragma once


#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// The shape of a prefix tree without its tokens: which segments of KV are cached and at which ends there are states.
/// A node is a segment [begin, end) in blocks. Without a state it is kept only where two or more children meet: any
/// other is one with its child. So the tree has at most twice as many nodes as states.
///
/// Every operation is O(1); none allocates while there are at most as many nodes as were reserved. Bad indices are the
/// caller's mistake and are asserted. Not thread-safe.
class CheckpointNodes {
 public:
  using Index = std::uint32_t;  ///< used again after a removal
  static constexpr Index none = UINT32_MAX;
  static constexpr Index root = 0;

  struct Node {
    Index parent = none;
    std::uint32_t children = 0;
    Index only_child = 0;  ///< exclusive or of the children's indices: with one child, its index
    std::int32_t begin_blocks = 0;
    std::int32_t end_blocks = 0;
    std::uint32_t place = none;  ///< in live(); none: no such node
    bool has_state = false;
    bool is_only_child = false;  ///< of another node than the root

    [[nodiscard]] bool is_leaf() const noexcept { return children == 0; }
    [[nodiscard]] std::int32_t blocks() const noexcept { return end_blocks - begin_blocks; }
  };

  explicit CheckpointNodes(std::size_t reserve_nodes = 1024);

  [[nodiscard]] const Node& operator[](Index node) const noexcept { return nodes_[node]; }
  /// A hint that the node will be read.
  void fetch(Index node) const noexcept;
  [[nodiscard]] bool contains(Index node) const noexcept { return node < nodes_.size() && nodes_[node].place != none; }
  /// All nodes with the root, which is first: in the order of creation, but for a removal the last one takes the
  /// place of the removed one. So a place can be drawn at random.
  [[nodiscard]] std::span<const Index> live() const noexcept { return live_; }
  [[nodiscard]] std::int64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::int64_t states() const noexcept { return states_; }
  /// The end of the nearest ancestor with a state; 0 if there is none. O(nodes between).
  [[nodiscard]] std::int32_t ancestor_state_blocks(Index node) const noexcept {
    Index at = nodes_[node].parent;
    while (at != root && !nodes_[at].has_state) at = nodes_[at].parent;
    return nodes_[at].end_blocks;
  }
  /// The first node of those that only this one continues: up to the next fork. O(nodes between).
  [[nodiscard]] Index chain_top(Index node) const noexcept {
    while (nodes_[node].is_only_child) node = nodes_[node].parent;
    return node;
  }

  /// A new leaf [parent's end, end_blocks).
  Index add(Index parent, std::int32_t end_blocks, bool has_state);
  /// Cuts a node in two; the upper part [begin, at) is new and has no state.
  Index split(Index node, std::int32_t at_blocks);
  void set_state(Index node, bool has_state);
  /// A node with one child and no state becomes part of the child, which is answered.
  Index merge(Index node);
  /// Removes a leaf.
  void remove(Index node);

  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Recounts everything; throws std::logic_error naming the first violation. O(n).
  void check_invariants() const;

 private:
  [[nodiscard]] Index take();
  void give_back(Index node);
  void link(Index parent, Index child) noexcept;
  void unlink(Index parent, Index child) noexcept;
  /// Marks the child of a node that has one.
  void mark_only_child(Index parent, bool is_only_child) noexcept;

  std::vector<Node> nodes_;
  std::vector<Index> live_;
  Index free_head_ = none;  ///< linked through parent
  std::int64_t blocks_ = 0;
  std::int64_t states_ = 0;
};

}  // namespace stateport
