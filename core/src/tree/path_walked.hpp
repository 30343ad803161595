// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace stateport::detail {

/// The nodes that a walk went down, so that the way back up fetches them ahead. A node alone tells its parent, and the
/// upper nodes of a long path have left the nearest cache by then. For fetching only: of a path deeper than 4096 nodes
/// the upper end is overwritten.
class PathWalked {
 public:
  void note(std::uint32_t depth, std::uint32_t node) noexcept { nodes_[depth % nodes_.size()] = node; }
  /// On the way up: the node some levels above `depth`; above the root any node, mostly the root.
  [[nodiscard]] std::uint32_t above(std::uint32_t depth) const noexcept {
    return nodes_[(depth - levels) % nodes_.size()];
  }

  static constexpr std::uint32_t levels = 12;  ///< as many steps as a read from the next cache takes

 private:
  std::array<std::uint32_t, 4096> nodes_{};
};

}  // namespace stateport::detail
