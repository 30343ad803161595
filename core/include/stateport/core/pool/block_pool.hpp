// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_directory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {
namespace detail {
class TenantOwners;
}

/// The fate of a registered block at ref 0. (Megatron-LM's policies lru and ref_zero.)
enum class UnreferencedBlocks : std::uint8_t {
  cached,  ///< it keeps its content until it is evicted
  dropped  ///< it is free at once
};

struct BlockPoolOptions {
  std::int32_t blocks = 1;  ///< with the reserved one
  UnreferencedBlocks unreferenced = UnreferencedBlocks::cached;
  /// A dummy that is never handed out, for example block 0 where an engine pads its block tables with 0. BlockId{}: the
  /// last one.
  BlockId reserved = {};
  /// Which cached block is evicted first. Null: lru, by (last-use tick, id). Any order can be used. VictimFacts of a
  /// block has the last-use tick, the tick of registration, hits (1, and one for each reference since) and the number
  /// of registered children; all else is 0, so `priority` equals lru. A learning policy is refused, because a block
  /// pool knows no prompts.
  std::shared_ptr<EvictionPolicy> eviction;
  /// Set by a RequestCache with tenant_quotas alone: whose the blocks are. evict() then spares the content that the
  /// asking tenant may not have evicted; the accounts are those of before the call, so it is asked for one block.
  const detail::TenantOwners* owners = nullptr;
};

/// Bookkeeping of KV blocks, after Megatron-LM's block allocator:
///
///     free ── allocate ──► live (ref ≥ 1) ── release, not registered ──► free
///                            │   ▲
///              release,      ▼   │ retain
///              registered   cached (ref 0, has a hash) ── evict ──► free
///
/// A registered block knows its parent in the prefix; only blocks without registered children are evicted, so an
/// evicted block never leaves a hole below a cached one. Each victim is ranked after those before it are gone. Where
/// unreferenced blocks are dropped, nothing is cached and parents are not kept.
///
/// Costs: O(1) per block of a call, plus O(log n) per eviction; release of blocks that are dropped or not registered
/// sorts them. No allocation after construction and warm-up. Not thread-safe. Every function that takes blocks throws
/// InvalidArgument for one out of range, and then has changed nothing.
class BlockPool final : public BlockDirectory {
 public:
  /// Every block but the reserved one is free, in ascending order. Throws InvalidArgument for blocks < 1, a reserved
  /// block that does not exist, and a learning policy.
  explicit BlockPool(const BlockPoolOptions& options);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  [[nodiscard]] BlockId reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::int32_t free_blocks() const noexcept { return static_cast<std::int32_t>(free_.size()); }
  /// Blocks with ref 0 that are registered.
  [[nodiscard]] std::int32_t cached_blocks() const noexcept { return cached_count_; }

  /// The logical clock: allocate() and retain() store it as the last use of a block. An engine advances it once per
  /// step.
  [[nodiscard]] std::int64_t tick() const noexcept { return tick_; }
  void advance_tick() noexcept { ++tick_; }

  /// True if `count` blocks can be had while `matched` cached blocks are kept for their request.
  [[nodiscard]] bool can_allocate(std::int32_t count, std::int32_t matched = 0) const;
  /// Fills `out` with the top segment of the free stack in stored order, after evicting as many blocks as are missing.
  /// Ref counts are 1. False, and nothing changed, if there are not enough.
  [[nodiscard]] bool allocate(std::span<BlockId> out);
  /// Adds one per occurrence and refreshes the tick. Also throws for a free block.
  void retain(std::span<const BlockId> blocks);
  /// Takes one per occurrence. Also throws if a count would go below 0. Freed blocks go on the stack in order of id.
  void release(std::span<const BlockId> blocks);

  /// Makes full blocks findable. hashes[i] <= 0 is skipped, as is a block that already has that hash. parents[i] is
  /// the hash before it (root_hash for none; `parents` may be empty): the block before it in the batch if that has it,
  /// else the one that is found by it, this batch included; unknown counts as root. A hash that two blocks have finds
  /// the one registered last. Also throws for lists of different lengths, a free block, and a block that has another
  /// hash.
  void register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                       std::span<const BlockHash> parents = {});
  /// Frees `count` cached blocks, leaves first. False, and nothing changed, if there are not enough.
  [[nodiscard]] bool evict(std::int32_t count);
  /// No hash finds these blocks any more: cached ones are free, the others once they are released. Also throws for a
  /// block that is not registered. Precondition: each is named once. O(blocks of the pool).
  void forget(std::span<const BlockId> blocks);
  /// Overrides the last-use tick, for example to offer blocks for eviction first.
  void set_last_use(std::span<const BlockId> blocks, std::int64_t tick);

  /// BlockId{} if no block has it.
  [[nodiscard]] BlockId find(BlockHash hash) const;
  [[nodiscard]] std::size_t find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const override;

  [[nodiscard]] std::int32_t block_count() const noexcept override { return block_count_; }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const override { return at(block).ref_count; }
  [[nodiscard]] std::int64_t last_use_tick(BlockId block) const override { return at(block).tick; }
  [[nodiscard]] BlockHash hash(BlockId block) const override { return at(block).hash; }
  [[nodiscard]] BlockId parent(BlockId block) const override { return at(block).parent; }
  /// Registered blocks whose parent it is.
  [[nodiscard]] std::int32_t child_count(BlockId block) const { return at(block).children; }
  [[nodiscard]] bool is_free(BlockId block) const { return at(block).is_free(); }
  /// The free stack, bottom to top. For tests and dumps.
  [[nodiscard]] std::span<const BlockId> free_list() const noexcept { return free_; }

  void prefetch(BlockId block) const noexcept override;

  /// Every block but the reserved one is free again, in ascending order. Listeners are called for those that were not
  /// free. The tick stays.
  void reset();
  /// Throws std::logic_error naming the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  struct Block {
    std::int64_t tick = 0;
    BlockHash hash = hash_not_computed;
    std::int32_t ref_count = 0;
    BlockId parent;
    std::int32_t children = 0;

    [[nodiscard]] bool is_cached() const noexcept { return ref_count == 0 && hash > 0; }
    [[nodiscard]] bool is_leaf() const noexcept { return is_cached() && children == 0; }
    [[nodiscard]] bool is_free() const noexcept { return ref_count == 0 && hash <= 0; }
  };

  struct Books;

  [[nodiscard]] bool in_range(BlockId block) const noexcept { return block.valid() && block.value() < block_count_; }
  [[nodiscard]] const Block& at(BlockId block) const {
    require(in_range(block), "block", block, "is out of range");
    return raw(block);
  }
  [[nodiscard]] const Block& raw(BlockId block) const noexcept { return blocks_[block.index()]; }
  [[nodiscard]] Block& raw(BlockId block) noexcept { return blocks_[block.index()]; }
  void take_references(std::span<const BlockId> blocks);
  void link_parents(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                    std::span<const BlockHash> parents);
  void free_listed(std::span<const BlockId> blocks);
  void free_all();

  std::unique_ptr<Books> books_;  ///< the tables, the index of hashes and the order of eviction
  Block* blocks_ = nullptr;       ///< one table in `books_`, by block
  std::int32_t block_count_;
  std::int32_t cached_count_ = 0;
  std::int64_t tick_ = 0;
  UnreferencedBlocks unreferenced_;
  bool has_history_ = false;  ///< the order looks at more than the last use
  BlockId reserved_;
  std::vector<BlockId> free_;
};

}  // namespace stateport
