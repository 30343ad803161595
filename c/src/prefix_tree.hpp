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

/// A function of the caller's, or null.
struct TreeVictimFunction {
  std::int32_t (*call)(const stateport_victim* victim, void* context) = nullptr;
  void* context = nullptr;
};

struct TreeObject final : Object {
  static constexpr Kind kind = Kind::tree;
  TreeObject(const PrefixTree::Options& options, TreeVictimFunction on_victim)
      : Object(kind), layout_fingerprint(options.layout_fingerprint), tree(with(options, on_victim)) {}

  /// For one call. Slots that it frees are in the pool again; KV indices wait until they are taken.
  [[nodiscard]] Freed& collect() noexcept {
    freed.slots.clear();
    return freed;
  }

  std::uint64_t layout_fingerprint;
  PrefixTree tree;
  Freed freed;
  std::size_t taken = 0;  ///< of freed.kv
  std::vector<SlotId> slots;

 private:
  [[nodiscard]] PrefixTree::Options with(PrefixTree::Options options, TreeVictimFunction on_victim);
};

struct LockObject final : Object {
  static constexpr Kind kind = Kind::tree_lock;
  explicit LockObject(std::shared_ptr<TreeObject> of) : Object(kind), tree(std::move(of)) {}
  ~LockObject() override {
    const std::lock_guard turn(tree->mutex());
    lock.release();
  }
  [[nodiscard]] const Object& turn_owner() const noexcept override { return *tree; }

  std::shared_ptr<TreeObject> tree;
  PrefixLock lock;
};

/// Node ids: 0 is the root.
[[nodiscard]] NodeId node_from_c(std::uint64_t node) noexcept;
[[nodiscard]] std::uint64_t to_c(NodeId node) noexcept;

/// The spans of the results are those of the caller's struct.
[[nodiscard]] Namespace from_c(const stateport_namespace* name_space);
[[nodiscard]] PrefixInsert from_c(const stateport_insert& given);

[[nodiscard]] stateport_match to_c(const PrefixMatch& match) noexcept;
[[nodiscard]] stateport_victim to_c(const Victim& victim) noexcept;
[[nodiscard]] stateport_insert_result to_c(const InsertResult& result) noexcept;

}  // namespace stateport::c
