// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_directory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

/// For an engine that keeps its KV blocks in a pool of its own. The engine reports changes of its blocks in batches;
/// the slot allocator, the planner and the matcher read it here. This class allocates no block and evicts none.
///
///     unknown ── reference ──► live (ref ≥ 1) ── unreference to 0, not registered ──► unknown
///                                │   ▲
///               unreference      ▼   │ reference
///               to 0, registered cached (ref 0, has a hash) ── deregister ──► unknown
///
/// The engine may deregister cached blocks in any order. As long as a block that has a hash is there, the hash finds
/// one; which one, if several have it, depends on the sequence of calls alone.
///
/// Every function that takes blocks throws InvalidArgument for a block that is out of range or not in the state that
/// the arrow of the call starts from, and for one that is named twice where that is no count; then it has changed
/// nothing. O(1) per block. No allocation after construction. Not thread-safe.
class ExternalBlockPool final : public BlockDirectory {
 public:
  /// All blocks are unknown. Throws InvalidArgument for blocks < 1.
  explicit ExternalBlockPool(std::int32_t blocks);
  ~ExternalBlockPool();
  ExternalBlockPool(const ExternalBlockPool&) = delete;
  ExternalBlockPool& operator=(const ExternalBlockPool&) = delete;

  /// The logical clock: reference() stores it as the last use of a block. An engine advances it once per step.
  [[nodiscard]] std::int64_t tick() const noexcept { return tick_; }
  void advance_tick() noexcept { ++tick_; }

  /// Requests use these blocks: adds one per occurrence and refreshes the tick.
  void reference(std::span<const BlockId> blocks);
  /// Requests do not use them any more: takes one per occurrence. Also throws if a count would become negative. Of
  /// those that reach 0 the registered ones stay cached, the others lose their content; listeners are called for both.
  void unreference(std::span<const BlockId> blocks);
  /// Full blocks became findable: hashes[i] > 0 is that of blocks[i], parents[i] the hash before it (root_hash for
  /// none; `parents` may be empty). The parent is the block before it in the batch if that has the hash, else one that
  /// is found by it; unknown counts as root. Also throws for lists of different lengths, a hash <= 0, an unknown block,
  /// and a block that has a hash or is named twice.
  void register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                       std::span<const BlockHash> parents = {});
  /// The engine evicted these cached blocks: call it before one of them is written again. Also throws for a block that
  /// is referenced, has no hash or is named twice.
  void deregister(std::span<const BlockId> blocks);
  /// The engine dropped all blocks, referenced ones too: all are unknown. Listeners are called for those that were not
  /// unknown before.
  void clear();

  /// BlockId{} if no block has it.
  [[nodiscard]] BlockId find(BlockHash hash) const;
  [[nodiscard]] std::size_t find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const override;

  [[nodiscard]] std::int32_t block_count() const noexcept override { return block_count_; }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const override { return at(block).ref_count; }
  [[nodiscard]] std::int64_t last_use_tick(BlockId block) const override { return at(block).tick; }
  [[nodiscard]] BlockHash hash(BlockId block) const override { return at(block).hash; }
  /// BlockId{} also once the parent has lost its content.
  [[nodiscard]] BlockId parent(BlockId block) const override;
  /// Blocks that have a hash, referenced or not.
  [[nodiscard]] std::int32_t registered_blocks() const noexcept { return registered_count_; }

  void prefetch(BlockId block) const noexcept override;

  /// Throws std::logic_error naming the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  struct Block {
    std::int64_t tick = 0;
    BlockHash hash = hash_not_computed;
    std::int32_t ref_count = 0;
    BlockId parent;
    std::uint32_t parent_life = 0;  ///< the parent is gone if it has another life now
    std::uint32_t life = 0;         ///< contents that the block has had

    [[nodiscard]] bool is_unknown() const noexcept { return ref_count == 0 && hash <= 0; }
  };
  struct Books;

  [[nodiscard]] bool in_range(BlockId block) const noexcept { return block.valid() && block.value() < block_count_; }
  [[nodiscard]] const Block& at(BlockId block) const {
    require(in_range(block), "block", block, "is out of range");
    return blocks_[block.index()];
  }
  [[nodiscard]] Block& raw(BlockId block) noexcept { return blocks_[block.index()]; }
  void take_references(std::span<const BlockId> blocks);
  void require_each_once(std::span<const BlockId> blocks);
  void link_parents(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                    std::span<const BlockHash> parents);
  void forget(std::span<const BlockId> blocks);

  std::unique_ptr<Books> books_;  ///< the tables and the index of hashes
  Block* blocks_ = nullptr;       ///< one table in `books_`, by block
  std::int32_t block_count_;
  std::int32_t registered_count_ = 0;
  std::int64_t tick_ = 0;
};

}  // namespace stateport
