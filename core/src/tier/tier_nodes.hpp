// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/pool/block_directory.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "containers/hash_index.hpp"
#include "containers/table.hpp"
#include "hash/namespace_tag.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

[[nodiscard]] constexpr std::size_t index_of(Medium medium) noexcept {
  return static_cast<std::size_t>(medium);
}

/// A set of media.
using MediumSet = std::uint8_t;
[[nodiscard]] constexpr MediumSet bit(Medium medium) noexcept {
  return static_cast<MediumSet>(1U << static_cast<unsigned>(medium));
}
/// The medium, and all that are faster.
[[nodiscard]] constexpr MediumSet down_to(Medium medium) noexcept {
  return static_cast<MediumSet>(2 * bit(medium) - 1);
}
inline constexpr MediumSet on_device = bit(Medium::device);
inline constexpr MediumSet below_device = static_cast<MediumSet>(~on_device);
inline constexpr MediumSet all_media = below_device | on_device;
/// The fastest tier of the set.
[[nodiscard]] constexpr Medium fastest(MediumSet set) noexcept {
  return static_cast<Medium>(std::countr_zero(static_cast<unsigned>(set & below_device)));
}

/// Where the images of one content are. For each tier:
///
///     absent ── store, copy ──► coming ── done ──► in ── drop, evict, moved down ──► absent
///        │                        └── failed ──► absent
///        └── attached, found ──► in
///
/// One image comes at a time. `going` and `readers` hold an image that is in a tier: while it is moved down, and while
/// it is loaded.
struct TierItem {
  MediumSet in = 0;
  MediumSet coming = 0;
  MediumSet lost = 0;             ///< tiers that lost it since the image that is coming began to come
  MediumSet given_up = 0;         ///< states: tiers that evicted it since it was last made
  bool going = false;             ///< from one tier to a slower one
  bool failed = false;            ///< a part of what is coming did not arrive
  std::uint8_t parts_coming = 0;  ///< images that are not answered yet
  std::int32_t readers = 0;

  [[nodiscard]] constexpr bool is_nowhere() const noexcept { return (in | coming) == 0 && readers == 0; }
  [[nodiscard]] constexpr bool is_below() const noexcept { return ((in | coming) & below_device) != 0; }
  [[nodiscard]] constexpr bool is_at(Medium medium) const noexcept { return ((in | coming) & bit(medium)) != 0; }
  /// In this tier or in a faster one, or on its way into any.
  [[nodiscard]] constexpr bool is_kept(Medium tier) const noexcept {
    return coming != 0 || (in & below_device & down_to(tier)) != 0;
  }
};

/// A block of a prompt, with everything before it: where its KV is, and the state at its end.
struct TierNode {
  static constexpr std::uint32_t none = UINT32_MAX;
  PrefixHash prefix;
  std::int64_t tokens = 0;  ///< up to the end of the block
  std::uint32_t parent = none;
  std::uint32_t first_child = none;
  std::uint32_t next = none;  ///< of the children of its parent
  std::uint32_t before = none;
  TierItem kv;
  TierItem state;
  /// By medium: its state, if it is there or on its way, and the children that need something there. KV of the block is
  /// worth its room in a tier only as long as a state there, or in a faster medium, needs it.
  std::array<std::uint32_t, medium_count> need = {};
  std::int32_t kv_block = -1;       ///< on the device
  std::uint32_t device_groups = 0;  ///< a bit for each group whose state is on the device
  std::uint64_t made_in = 0;        ///< the call that put the state on the device
  std::int64_t tick = 0;            ///< of its last use
  bool used = false;                ///< the node exists
  bool is_tagged = false;           ///< `tag` is known: the device had the KV since the cache was made
  bool is_forgotten = false;        ///< its contents leave as soon as nothing moves or reads them
  NamespaceTag tag{};

  /// A state needs the KV of a slower medium as well: it is loaded from there.
  [[nodiscard]] bool is_needed_in(Medium medium) const noexcept {
    std::uint32_t sum = 0;
    for (std::size_t at = 0; at <= index_of(medium); ++at) sum += need[at];
    return sum > 0;
  }
  [[nodiscard]] bool is_needed() const noexcept {
    std::uint32_t sum = 0;
    for (const std::uint32_t medium : need) sum += medium;
    return sum > 0;
  }
};

/// The blocks of all prompts that are cached somewhere, as a forest: the parent of a block is the block before it. An
/// inner node may hold nothing. Nodes are named like the blocks of a BlockDirectory, which a StateForest reads. No
/// allocation after construction.
class TierNodes final : public BlockDirectory {
 public:
  static constexpr std::uint32_t none = TierNode::none;

  TierNodes(std::size_t capacity, std::size_t groups);

  [[nodiscard]] TierNode& operator[](std::uint32_t node) noexcept { return nodes_[node]; }
  [[nodiscard]] const TierNode& operator[](std::uint32_t node) const noexcept { return nodes_[node]; }
  /// `none` if there is no such node.
  [[nodiscard]] std::uint32_t find(const PrefixHash& prefix) const noexcept;
  /// Finds the node or makes it, below `parent` (zero: a first block, or not known). `none` if there are too many.
  std::uint32_t intern(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens) noexcept;
  /// Hangs a node without a parent below `parent`.
  void link(std::uint32_t node, std::uint32_t parent) noexcept;
  /// Removes the node, and its parents, as far as they hold nothing and have no children. `forget(node)` is called
  /// before each is gone. Returns the first that stays.
  template <class Forget>
  std::uint32_t release(std::uint32_t node, Forget&& forget) {
    while (node != none && is_empty(node)) {
      forget(node);
      node = remove(node);
    }
    return node;
  }
  void add_need(std::uint32_t node, Medium medium) noexcept;
  void drop_need(std::uint32_t node, Medium medium) noexcept;
  /// Slots of the state, by group.
  [[nodiscard]] std::span<std::int32_t> slots(std::uint32_t node) noexcept {
    return std::span(slots_).subspan(node * groups_, groups_);
  }
  [[nodiscard]] std::size_t size() const noexcept { return index_.count(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return nodes_.size(); }
  /// All nodes that exist have smaller numbers, and so have all that have existed since clear().
  [[nodiscard]] std::uint32_t made() const noexcept { return made_; }
  void clear() noexcept;
  /// Throws std::logic_error naming the first violation. O(made()).
  void check_invariants() const;

  [[nodiscard]] std::int32_t block_count() const noexcept override { return static_cast<std::int32_t>(nodes_.size()); }
  [[nodiscard]] std::int32_t ref_count(BlockId) const override { return 0; }
  [[nodiscard]] std::int64_t last_use_tick(BlockId block) const override { return nodes_[block.index()].tick; }
  [[nodiscard]] BlockHash hash(BlockId) const override { return hash_not_computed; }
  [[nodiscard]] BlockId parent(BlockId block) const override {
    const std::uint32_t parent = nodes_[block.index()].parent;
    return parent == none ? BlockId{} : BlockId{static_cast<std::int32_t>(parent)};
  }
  [[nodiscard]] std::size_t find_prefix(std::span<const BlockHash>, std::span<BlockId>) const override { return 0; }

 private:
  /// Keys may come from anywhere: the high half of the product has something of every bit (Knuth, 6.4).
  [[nodiscard]] static std::uint32_t mixed(const PrefixHash& prefix) noexcept {
    return static_cast<std::uint32_t>((prefix.words[0] * 0x9e3779b97f4a7c15u) >> 32);
  }
  [[nodiscard]] bool is_empty(std::uint32_t node) const noexcept {
    const TierNode& entry = nodes_[node];
    return entry.first_child == none && entry.kv.is_nowhere() && entry.state.is_nowhere() && entry.device_groups == 0;
  }
  std::uint32_t remove(std::uint32_t node) noexcept;

  std::size_t groups_;
  Table<TierNode> nodes_;
  std::vector<std::int32_t> slots_;  ///< [nodes, groups]
  std::vector<std::uint32_t> free_;
  std::uint32_t made_ = 0;  ///< nodes from here on were never used
  HashIndex index_{50};     ///< by prefix
};

}  // namespace stateport::detail
