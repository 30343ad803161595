// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace stateport::detail {

/// Nodes that wait for something, each at most once. All calls but reserve() and clear() are O(1) and do not allocate.
class NodeList {
 public:
  /// For nodes 0 … nodes - 1.
  void reserve(std::size_t nodes) {
    nodes_.reserve(nodes);
    listed_.resize(nodes, 0);
  }
  /// Without effect if the list has the node.
  void add(std::uint32_t node) {
    if (std::exchange(listed_[node], std::uint8_t{1}) == 0) nodes_.push_back(node);
  }
  /// Removes the node that was added last; none: the list is empty.
  [[nodiscard]] std::optional<std::uint32_t> take() noexcept {
    if (nodes_.empty()) return std::nullopt;
    const std::uint32_t node = nodes_.back();
    nodes_.pop_back();
    listed_[node] = 0;
    return node;
  }
  [[nodiscard]] bool contains(std::uint32_t node) const noexcept { return node < listed_.size() && listed_[node] != 0; }
  void clear() noexcept {
    while (take()) {
    }
  }

 private:
  std::vector<std::uint32_t> nodes_;
  std::vector<std::uint8_t> listed_;  ///< by node
};

}  // namespace stateport::detail
