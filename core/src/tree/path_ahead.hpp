// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace stateport::detail {

/// Where a walk down the tree will probably come. When a path is used, every node of it gets two hints: the node that
/// lies `levels` below, and the next one. The next walk down the same path fetches nodes before it comes to them, so
/// that their cache misses overlap, and need not look them up. It must check what it finds: the node may be gone, or be
/// part of another path, or others may have come in between. The hint of the next node counts only where none came from
/// further up: on the first levels, and where the path leaves the one that was used last.
///
/// These are the jump pointers of Luk and Mowry (Compiler-based prefetching for recursive data structures, ASPLOS
/// 1996). This class holds what they tell of the levels around a walk; depths count from the root, which has depth 0
/// and no hint.
class PathAhead {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  /// A node is fetched so many steps ahead, its tokens and KV indices half as many: a miss takes about as long as
  /// these.
  static constexpr std::uint32_t levels = 8;

  PathAhead() noexcept { nodes_.fill(none); }
  /// What was noted at `depth` or, if nothing was, `levels` before (on the way down) or behind it (on the way up).
  [[nodiscard]] std::uint32_t at(std::uint32_t depth) const noexcept { return nodes_[depth % levels]; }
  void note(std::uint32_t depth, std::uint32_t node) noexcept { nodes_[depth % levels] = node; }

 private:
  std::array<std::uint32_t, levels> nodes_;
};

}  // namespace stateport::detail
