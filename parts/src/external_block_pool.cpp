// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/external_block_pool.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "hash/block_hash_index.hpp"

namespace stateport {

struct ExternalBlockPool::Books {
  explicit Books(std::size_t count);

  [[nodiscard]] auto hash_of() const noexcept {
    return [this](BlockId block) { return blocks[block.index()].hash; };
  }

  Table<Block> blocks;
  detail::BlockHashIndex<BlockId> hash_to_block;
  // Scratch of one call, with room for every block.
  std::vector<BlockId> cached;
  std::vector<BlockId> lost;
  std::vector<BlockHash> lost_hashes;
};

ExternalBlockPool::Books::Books(std::size_t count) : blocks(count), hash_to_block(count) {
  cached.reserve(count);
  lost.reserve(count);
  lost_hashes.reserve(count);
}

ExternalBlockPool::ExternalBlockPool(std::int32_t blocks) : block_count_(blocks) {
  require(blocks >= 1, "blocks", blocks, "must be at least 1");
  books_ = std::make_unique<Books>(static_cast<std::size_t>(blocks));
  blocks_ = books_->blocks.data();
}

ExternalBlockPool::~ExternalBlockPool() = default;

void ExternalBlockPool::reference(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) static_cast<void>(at(block));
  for (const BlockId id : blocks) {
    ++raw(id).ref_count;
    raw(id).tick = tick_;
  }
}

void ExternalBlockPool::unreference(std::span<const BlockId> blocks) {
  take_references(blocks);
  if (!books_->cached.empty()) report_unreferenced(books_->cached);
  forget(books_->lost);
}

/// Sorts the blocks that reach ref 0 into `cached` and `lost`. References that were taken before the first block
/// without a reference are given back.
void ExternalBlockPool::take_references(std::span<const BlockId> blocks) {
  books_->cached.clear();
  books_->lost.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!in_range(blocks[i]) || raw(blocks[i]).ref_count == 0) {
      for (std::size_t k = 0; k < i; ++k) ++raw(blocks[k]).ref_count;
      require(in_range(blocks[i]), "block", blocks[i], "is out of range");
      require(false, "block", blocks[i], "is unreferenced more often than it was referenced");
    }
    Block& block = raw(blocks[i]);
    if (--block.ref_count == 0) (block.hash > 0 ? books_->cached : books_->lost).push_back(blocks[i]);
  }
}

void ExternalBlockPool::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                                        std::span<const BlockHash> parents) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  require(parents.empty() || parents.size() == blocks.size(), "parents", parents.size(), "must be as many as blocks");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    require(!at(blocks[i]).is_unknown(), "block", blocks[i], "was never referenced");
    require(hashes[i] > 0, "hashes", hashes[i], "must be positive");
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (raw(blocks[i]).hash > 0) {
      for (std::size_t k = 0; k < i; ++k) raw(blocks[k]).hash = hash_not_computed;
      require(false, "block", blocks[i], "is registered already");
    }
    raw(blocks[i]).hash = hashes[i];
  }
  detail::for_each_prefetched(
      blocks.size(), [&](std::size_t i) { books_->hash_to_block.prefetch(hashes[i]); },
      [&](std::size_t i) { books_->hash_to_block.add(hashes[i], blocks[i]); });
  registered_count_ += static_cast<std::int32_t>(blocks.size());
  if (!parents.empty()) link_parents(blocks, hashes, parents);
}

void ExternalBlockPool::link_parents(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                                     std::span<const BlockHash> parents) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (parents[i] <= 0) continue;
    const BlockId parent = i > 0 && hashes[i - 1] == parents[i] ? blocks[i - 1] : find(parents[i]);
    if (!parent.valid() || parent == blocks[i]) continue;
    raw(blocks[i]).parent = parent;
    raw(blocks[i]).parent_life = raw(parent).life;
  }
}

void ExternalBlockPool::deregister(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    require(at(block).hash > 0, "block", block, "is not registered");
    require(at(block).ref_count == 0, "block", block, "is referenced");
  }
  require_each_once(blocks);
  forget(blocks);
}

/// Refuses a block that is named twice: hashes that were seen are negative until the end of the call.
void ExternalBlockPool::require_each_once(std::span<const BlockId> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& block = raw(blocks[i]);
    if (block.hash < 0) {
      for (std::size_t k = 0; k < i; ++k) raw(blocks[k]).hash = -raw(blocks[k]).hash;
      require(false, "blocks", blocks[i], "is named twice");
    }
    block.hash = -block.hash;
  }
  for (const BlockId block : blocks) raw(block).hash = -raw(block).hash;
}

/// The content of these blocks is gone. Precondition: no references, and none is named twice.
void ExternalBlockPool::forget(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  books_->lost_hashes.clear();
  for (const BlockId id : blocks) books_->lost_hashes.push_back(raw(id).hash);
  detail::for_each_prefetched(
      blocks.size(), [&](std::size_t i) { books_->hash_to_block.prefetch(books_->lost_hashes[i]); },
      [&](std::size_t i) {
        if (books_->lost_hashes[i] > 0) {
          books_->hash_to_block.erase(books_->lost_hashes[i], blocks[i]);
          --registered_count_;
        }
        raw(blocks[i]) = {.life = raw(blocks[i]).life + 1};
      });
  report_deregistered(blocks, books_->lost_hashes);
}

void ExternalBlockPool::clear() {
  books_->lost.clear();
  for (std::int32_t index = 0; index < block_count_; ++index) {
    if (raw(BlockId{index}).is_unknown()) continue;
    raw(BlockId{index}).ref_count = 0;
    books_->lost.emplace_back(index);
  }
  forget(books_->lost);
}

BlockId ExternalBlockPool::find(BlockHash hash) const {
  return books_->hash_to_block.find(hash, books_->hash_of());
}

std::size_t ExternalBlockPool::find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const {
  require(out.size() >= hashes.size(), "out", out.size(), "must be at least as long as hashes");
  return books_->hash_to_block.find_prefix(hashes, out, books_->hash_of(), [this](BlockId block) { prefetch(block); });
}

BlockId ExternalBlockPool::parent(BlockId block) const {
  const Block& entry = at(block);
  const bool there = entry.parent.valid() && blocks_[entry.parent.index()].life == entry.parent_life;
  return there ? entry.parent : BlockId{};
}

void ExternalBlockPool::prefetch(BlockId block) const noexcept {
  if (in_range(block)) detail::prefetch(&blocks_[block.index()]);
}

void ExternalBlockPool::check_invariants() const {
  constexpr const char* structure = "ExternalBlockPool";
  std::int32_t registered = 0;
  for (const Block& block : books_->blocks) {
    require_invariant(block.ref_count >= 0, structure, "a ref count is negative");
    require_invariant(!block.parent.valid() || block.hash > 0, structure, "a block without a hash has a parent");
    if (block.hash <= 0) continue;
    ++registered;
    const BlockId found = find(block.hash);
    require_invariant(found.valid() && blocks_[found.index()].hash == block.hash, structure, "a hash finds no block");
  }
  require_invariant(registered == registered_count_, structure, "the count of registered blocks is wrong");
  require_invariant(books_->hash_to_block.size() == static_cast<std::size_t>(registered), structure,
                    "the index holds another number of blocks");
  books_->hash_to_block.check_invariants(books_->hash_of());
}

}  // namespace stateport
