// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include <memory>
#include <utility>

namespace stateport {
namespace detail {
class RadixTree;
}

/// A pin on a path of a PrefixTree: while it lives, the KV of the path from the root to its node is not evicted, nor
/// is the state of the node, be it there when the node is locked or come later.
///
/// Move-only: a double unlock cannot be written. A handle may outlive reset() and the tree itself; it then releases
/// nothing. Not thread-safe, like its tree.
class PrefixLock {
 public:
  PrefixLock() noexcept = default;
  PrefixLock(PrefixLock&& other) noexcept : tree_(std::move(other.tree_)), node_(std::exchange(other.node_, {})) {
    other.tree_.reset();
  }
  PrefixLock& operator=(PrefixLock&& other) noexcept {
    if (this != &other) {
      release();
      tree_ = std::move(other.tree_);
      other.tree_.reset();
      node_ = std::exchange(other.node_, {});
    }
    return *this;
  }
  PrefixLock(const PrefixLock&) = delete;
  PrefixLock& operator=(const PrefixLock&) = delete;
  ~PrefixLock() { release(); }

  /// Unlocks; without effect on an empty handle. O(nodes of the path).
  void release() noexcept;

  /// The locked node; the root, which needs no lock, for an empty handle too.
  [[nodiscard]] NodeId node() const noexcept { return node_; }

 private:
  friend class PrefixTree;
  PrefixLock(std::weak_ptr<detail::RadixTree> tree, NodeId node) noexcept : tree_(std::move(tree)), node_(node) {}

  std::weak_ptr<detail::RadixTree> tree_;
  NodeId node_;
};

}  // namespace stateport
