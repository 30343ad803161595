// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// Where a walk down the tree will probably come. When a path is used, every node of it gets two hints: the nodes at
/// the depths near(depth) and far(depth) of that path. The next walk down the same path fetches nodes before it comes
/// to them, so that their cache misses overlap, and need not look them up. It must check each node: the node may be
/// gone, or be part of another path, or others may have come in between.
///
/// These are the jump pointers of Luk and Mowry (Compiler-based prefetching for recursive data structures, ASPLOS
/// 1996). Theirs all point the same number of levels ahead, so that nothing tells of the first levels. Ours point to
/// twice the depth and the one behind it there: the first 31 levels are known after 4 misses in turn. This class holds
/// the hints for the levels around a walk; depths count from the root, which has depth 0 and no hint.
class PathAhead {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  /// The largest number of steps that a node is fetched ahead: a miss takes about as long as these.
  static constexpr std::uint32_t levels = 16;
  /// The number of steps that its tokens and KV indices are fetched ahead.
  static constexpr std::uint32_t page_levels = 4;

  [[nodiscard]] static constexpr std::uint32_t far(std::uint32_t depth) noexcept {
    return depth < levels ? 2 * depth + 1 : depth + levels;
  }
  /// From `levels` on it is the next depth. It is needed where the path leaves the one that was used last.
  [[nodiscard]] static constexpr std::uint32_t near(std::uint32_t depth) noexcept {
    return depth < levels ? 2 * depth : depth + 1;
  }

  PathAhead() noexcept { nodes_.fill(none); }
  /// The node that was noted for `depth`, for depths that are at most 2 * levels apart.
  [[nodiscard]] std::uint32_t at(std::uint32_t depth) const noexcept { return nodes_[depth % nodes_.size()]; }
  void note(std::uint32_t depth, std::uint32_t node) noexcept { nodes_[depth % nodes_.size()] = node; }

 private:
  std::array<std::uint32_t, std::size_t{2} * levels> nodes_;
};

}  // namespace stateport::detail
