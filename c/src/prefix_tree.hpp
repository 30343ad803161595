// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/prefix_tree.h>
#include <stateport/core/tree/prefix_tree.hpp>

#include "handle_table.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stateport::c {

struct TreeObject final : Object {
  static constexpr Kind kind = Kind::tree;
  explicit TreeObject(const PrefixTree::Options& options)
      : Object(kind), layout_fingerprint(options.layout_fingerprint), tree(options) {}

  /// For one call. What it frees of slots is in the pool again; KV indices wait until they are taken.
  [[nodiscard]] Freed& collect() noexcept {
    freed.slots.clear();
    return freed;
  }

  std::uint64_t layout_fingerprint;
  PrefixTree tree;
  Freed freed;
  std::size_t taken = 0;  ///< of freed.kv
  std::vector<SlotId> slots;
};

struct LockObject final : Object {
  static constexpr Kind kind = Kind::tree_lock;
  explicit LockObject(std::shared_ptr<TreeObject> of) : Object(kind), tree(std::move(of)) {}
  ~LockObject() override {
    const std::lock_guard turn(tree->mutex());
    lock.release();
  }

  std::shared_ptr<TreeObject> tree;
  PrefixLock lock;
};

/// Node ids: 0 is the root.
[[nodiscard]] NodeId node_from_c(std::uint64_t node) noexcept;
[[nodiscard]] std::uint64_t to_c(NodeId node) noexcept;

/// The spans of what these return are those of the caller's struct.
[[nodiscard]] Namespace from_c(const stateport_namespace* name_space);
[[nodiscard]] PrefixInsert from_c(const stateport_insert& given);

[[nodiscard]] stateport_match to_c(const PrefixMatch& match) noexcept;
[[nodiscard]] stateport_victim to_c(const Victim& victim) noexcept;
[[nodiscard]] stateport_insert_result to_c(const InsertResult& result) noexcept;

}  // namespace stateport::c
