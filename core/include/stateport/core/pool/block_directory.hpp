// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// Called by a BlockDirectory, for objects that keep data by block. Callbacks run inside a call of the directory, when
/// it is consistent again: they may read it and must not change it. They do not throw for valid ids.
class BlockListener {
 public:
  /// The ref count of these blocks has become 0, or an unreferenced block got an older last-use tick. There is no call
  /// when a count grows or a tick becomes newer: a listener reads both when it needs them.
  virtual void on_blocks_unreferenced(std::span<const BlockId> blocks) = 0;
  /// These blocks lost their content: evicted, dropped or freed. blocks[i] was registered with hashes[i], which is not
  /// positive if it was not registered.
  virtual void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) = 0;

 protected:
  ~BlockListener() = default;
};

/// The KV blocks as the slot allocator, the planner and the matcher read them. BlockPool is one; ExternalBlockPool is
/// one for an engine with its own KV pool. Another implementation tells its listeners:
///
///   - report_unreferenced() once per release, for the blocks whose count reached 0;
///   - report_deregistered() once per eviction, before one of the blocks is handed out again.
///
/// Reads are O(1), throw InvalidArgument for a block outside [0, block_count) and are called in hot loops.
class BlockDirectory {
 public:
  virtual ~BlockDirectory() = default;

  [[nodiscard]] virtual std::int32_t block_count() const noexcept = 0;
  [[nodiscard]] virtual std::int32_t ref_count(BlockId block) const = 0;
  /// Order of last use; equal ticks are normal.
  [[nodiscard]] virtual std::int64_t last_use_tick(BlockId block) const = 0;
  [[nodiscard]] virtual BlockHash hash(BlockId block) const = 0;
  /// The block before it in its prefix, if that is known; BlockId{} for a root.
  [[nodiscard]] virtual BlockId parent(BlockId block) const = 0;

  /// Writes the blocks that hold the leading hashes into `out` (at least as long) and returns how many there are: up
  /// to the first hash that no block has.
  [[nodiscard]] virtual std::size_t find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const = 0;

  /// A hint that the block will soon be asked for. Any id is allowed.
  virtual void prefetch(BlockId) const noexcept {}

  /// A listener is called until it is removed. It must outlive its registration.
  virtual void add_listener(BlockListener& listener) { listeners_.push_back(&listener); }
  virtual void remove_listener(BlockListener& listener) noexcept { std::erase(listeners_, &listener); }

 protected:
  /// See BlockListener. In the order in which the listeners were added.
  void report_unreferenced(std::span<const BlockId> blocks) const {
    for (BlockListener* listener : listeners_) listener->on_blocks_unreferenced(blocks);
  }
  void report_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) const {
    for (BlockListener* listener : listeners_) listener->on_blocks_deregistered(blocks, hashes);
  }

 private:
  std::vector<BlockListener*> listeners_;
};

}  // namespace stateport
