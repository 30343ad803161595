// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// What a directory tells those who keep something per block. Callbacks run inside the directory's call, after its own
/// books are right; they may read the directory and must not change it. They do not throw for valid ids.
class BlockListener {
 public:
  /// The ref count of these blocks has become 0, or an unreferenced block got an older last-use tick. Nothing is said
  /// when a count grows or a tick gets newer: listeners look at both when they need them.
  virtual void on_blocks_unreferenced(std::span<const BlockId> blocks) = 0;
  /// These blocks lost their content: evicted, dropped or freed. hashes[i] is what blocks[i] was registered with, not
  /// positive if it was not.
  virtual void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) = 0;

 protected:
  ~BlockListener() = default;
};

/// Who owns KV blocks, seen by the slot allocator, the planner and the matcher. BlockPool is one; an engine with its
/// own KV pool implements this over it, and calls its listeners:
///
///   - on_blocks_unreferenced once per release, for the blocks whose count reached 0;
///   - on_blocks_deregistered once per eviction, before one of the blocks is handed out again.
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
  virtual void add_listener(BlockListener& listener) = 0;
  virtual void remove_listener(BlockListener& listener) noexcept = 0;
};

}  // namespace stateport
