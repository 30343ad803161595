// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace stateport::detail {

/// Where a walk down the tree will probably come. When a path is used, every node of it gets a hint: the node that lies
/// `levels` below. The next walk down the same path fetches nodes before it comes to them, so that their cache misses
/// overlap, and need not look them up. It must check what it finds: the node may be gone, or be part of another path,
/// or others may have come in between.
///
/// These are the jump pointers of Luk and Mowry (Compiler-based prefetching for recursive data structures, ASPLOS
/// 1996). This class holds those of the last levels of a walk; depths count from the root, which has depth 0 and no
/// hint.
class PathAhead {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  /// The first levels of a path have no hint, and a miss takes about as long as this many steps.
  static constexpr std::uint32_t levels = 4;

  PathAhead() noexcept { nodes_.fill(none); }
  /// What was noted at `depth` or, if nothing was, `levels` before (on the way down) or behind it (on the way up).
  [[nodiscard]] std::uint32_t at(std::uint32_t depth) const noexcept { return nodes_[depth % levels]; }
  void note(std::uint32_t depth, std::uint32_t node) noexcept { nodes_[depth % levels] = node; }

 private:
  std::array<std::uint32_t, levels> nodes_;
};

}  // namespace stateport::detail
