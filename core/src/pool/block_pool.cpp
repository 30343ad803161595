// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/block_pool.hpp>

#include <stateport/core/containers/prefetch.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport {

namespace {

std::size_t checked_count(std::int32_t blocks) {
  require(blocks >= 1, "blocks", blocks, "must be at least 1: the last block is a dummy");
  return static_cast<std::size_t>(blocks);
}

BlockId id_of(std::uint32_t index) noexcept {
  return BlockId{static_cast<std::int32_t>(index)};
}

}  // namespace

BlockPool::BlockPool(const BlockPoolOptions& options)
    : policy_(options.policy), blocks_(checked_count(options.blocks)), hash_to_block_(blocks_.size()) {
  const std::size_t count = blocks_.size();
  free_.reserve(count);
  victims_.reserve(count);
  listed_.reserve(count);
  unreferenced_.reserve(count);
  hashes_.reserve(count);
  fresh_.reserve(count);
  for (std::int32_t block = 0; block + 1 < options.blocks; ++block) free_.push_back(BlockId{block});
}

bool BlockPool::can_allocate(std::int32_t count, std::int32_t matched) const {
  require(count >= 0, "count", count, "must not be negative");
  require(matched >= 0, "matched", matched, "must not be negative");
  return count <= free_blocks() || count - free_blocks() <= cached_count_ - matched;
}

bool BlockPool::allocate(std::span<BlockId> out) {
  if (out.size() > free_.size()) {
    const std::size_t missing = out.size() - free_.size();
    if (missing > static_cast<std::size_t>(cached_count_)) return false;
    if (!evict_lru(static_cast<std::int32_t>(missing))) return false;
  }
  std::copy(free_.end() - static_cast<std::ptrdiff_t>(out.size()), free_.end(), out.begin());
  free_.resize(free_.size() - out.size());
  detail::for_each_prefetched(
      out.size(), [&](std::size_t i) { prefetch(out[i]); },
      [&](std::size_t i) {
        Block& block = raw(out[i]);
        block.ref_count = 1;
        block.tick = tick_;
      });
  if (!out.empty()) victims_.prefetch(static_cast<std::uint32_t>(out.back().value()));  // the leaf of a prompt
  return true;
}

void BlockPool::retain(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) require(!at(block).is_free(), "block", block, "is free");
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    cached_count_ -= block.is_cached();
    ++block.ref_count;
    block.tick = tick_;
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  take_references(blocks);
  cached_count_ += static_cast<std::int32_t>(unreferenced_.size());
  for (const BlockId id : unreferenced_) offer(id);
  if (!unreferenced_.empty()) tell_unreferenced(unreferenced_);
  if (!listed_.empty()) {
    std::ranges::sort(listed_);
    free_listed(listed_);
  }
}

/// Sorts the blocks that reach ref 0 into those that stay cached (unreferenced_) and those to free (listed_). All or
/// nothing: what was taken before the first block that has no reference left is given back.
void BlockPool::take_references(std::span<const BlockId> blocks) {
  unreferenced_.clear();
  listed_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!in_range(blocks[i]) || raw(blocks[i]).ref_count == 0) {
      for (std::size_t k = 0; k < i; ++k) ++raw(blocks[k]).ref_count;
      require(in_range(blocks[i]), "block", blocks[i], "is out of range");
      require(false, "block", blocks[i], "is released more often than it is held");
    }
    Block& block = raw(blocks[i]);
    if (--block.ref_count > 0) continue;
    (block.hash > 0 && policy_ == BlockPolicy::lru ? unreferenced_ : listed_).push_back(blocks[i]);
  }
}

void BlockPool::offer(BlockId id) {
  const Block& block = raw(id);
  // An entry of an earlier time may carry a later tick: set_last_use and retain may both set an older one.
  if (block.is_cached() && block.children == 0) victims_.update(static_cast<std::uint32_t>(id.value()), block.tick);
}

void BlockPool::tell_unreferenced(std::span<const BlockId> blocks) {
  for (BlockListener* listener : listeners_) listener->on_blocks_unreferenced(blocks);
}

void BlockPool::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                                std::span<const BlockHash> parents) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  require(parents.empty() || parents.size() == blocks.size(), "parents", parents.size(), "must be as many as blocks");
  for (const BlockId block : blocks) require(!at(block).is_free(), "block", block, "is free");
  // fresh_ holds positions in the batch; a block named twice is fresh once, so the reserve is enough.
  fresh_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& block = raw(blocks[i]);
    if (hashes[i] <= 0 || block.hash == hashes[i]) continue;
    if (block.hash > 0) {
      for (const std::uint32_t k : fresh_) raw(blocks[k]).hash = hash_not_computed;
      require(false, "hashes", hashes[i], "differs from the hash that the block has");
    }
    block.hash = hashes[i];
    fresh_.push_back(static_cast<std::uint32_t>(i));
  }
  detail::for_each_prefetched(
      fresh_.size(), [&](std::size_t k) { hash_to_block_.prefetch(hashes[fresh_[k]]); },
      [&](std::size_t k) { hash_to_block_.assign(hashes[fresh_[k]], blocks[fresh_[k]], hash_of()); });
  if (policy_ == BlockPolicy::lru && !parents.empty()) link_parents(blocks, hashes, parents);
}

/// Links the fresh blocks of a batch to their parents. A link that would close a cycle (only nonsense input makes one)
/// is left out, because a cycle could never be evicted.
void BlockPool::link_parents(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                             std::span<const BlockHash> parents) {
  for (const std::uint32_t i : fresh_) {
    if (parents[i] <= 0) continue;
    const BlockId parent = i > 0 && hashes[i - 1] == parents[i] ? blocks[i - 1] : find(parents[i]);
    if (!parent.valid()) continue;
    // Blocks get their parents in batch order, so in a sane batch the walk ends at once: a fresh block has no children.
    if (parent == blocks[i] || (raw(blocks[i]).children > 0 && is_ancestor(blocks[i], parent))) continue;
    raw(blocks[i]).parent = parent;
    ++raw(parent).children;
  }
}

bool BlockPool::is_ancestor(BlockId block, BlockId of) const noexcept {
  for (BlockId walk = of; walk.valid(); walk = blocks_[walk.index()].parent)
    if (walk == block) return true;
  return false;
}

bool BlockPool::evict_lru(std::int32_t count) {
  require(count >= 0, "count", count, "must not be negative");
  if (count > cached_count_ || !choose_victims(static_cast<std::size_t>(count))) return false;
  cached_count_ -= count;
  free_listed(listed_);
  return true;
}

/// Peels leaves into listed_. If they run out (a live block below a cached one), everything is put back.
bool BlockPool::choose_victims(std::size_t count) {
  listed_.clear();
  const auto next_victim = [this] {
    return victims_.top([this](std::uint32_t index) { return blocks_[index].is_leaf(); },
                        [this](std::uint32_t index) { return blocks_[index].tick; });
  };
  while (listed_.size() < count) {
    // Old blocks are in no cache any more: fetch those that will soon be looked at.
    if (const auto soon = victims_.upcoming(detail::prefetch_distance)) detail::prefetch(&blocks_[*soon]);
    const auto victim = next_victim();
    if (!victim) {
      for (const BlockId id : listed_)
        if (raw(id).parent.valid()) ++raw(raw(id).parent).children;
      for (const BlockId id : listed_) offer(id);
      return false;
    }
    BlockId leaf = peel(id_of(*victim));
    if (!leaf.valid()) continue;
    // A prompt goes from its end to its beginning without being queued block by block, until an older leaf is met.
    if (listed_.size() < count) {
      const auto rival = next_victim();
      while (leaf.valid() && listed_.size() < count && !(rival && precedes(id_of(*rival), leaf))) leaf = peel(leaf);
    }
    if (leaf.valid()) offer(leaf);
  }
  for (const BlockId id : listed_) raw(id).parent = BlockId{};
  return true;
}

/// Adds a leaf to listed_ and takes it out of its parent's count of children. Returns the parent if that made it a
/// leaf that can be evicted.
BlockId BlockPool::peel(BlockId leaf) {
  victims_.erase(static_cast<std::uint32_t>(leaf.value()));
  listed_.push_back(leaf);
  const BlockId parent = raw(leaf).parent;
  if (!parent.valid()) return parent;
  --raw(parent).children;
  return raw(parent).is_leaf() ? parent : BlockId{};
}

/// The order of eviction.
bool BlockPool::precedes(BlockId a, BlockId b) const noexcept {
  const std::int64_t tick_a = blocks_[a.index()].tick;
  const std::int64_t tick_b = blocks_[b.index()].tick;
  return tick_a != tick_b ? tick_a < tick_b : a < b;
}

/// Makes unreferenced blocks free and tells the listeners. Their parent links are gone already.
void BlockPool::free_listed(std::span<const BlockId> blocks) {
  hashes_.clear();
  for (const BlockId id : blocks) hashes_.push_back(raw(id).hash);
  detail::for_each_prefetched(
      blocks.size(), [&](std::size_t i) { hash_to_block_.prefetch(hashes_[i]); },
      [&](std::size_t i) {
        free_.push_back(blocks[i]);
        if (hashes_[i] <= 0) return;
        hash_to_block_.erase(hashes_[i], blocks[i]);
        raw(blocks[i]).hash = hash_not_computed;
        raw(blocks[i]).tick = 0;
      });
  if (blocks.empty()) return;
  for (BlockListener* listener : listeners_) listener->on_blocks_deregistered(blocks, hashes_);
}

void BlockPool::set_last_use(std::span<const BlockId> blocks, std::int64_t tick) {
  for (const BlockId block : blocks) require(!at(block).is_free(), "block", block, "is free");
  unreferenced_.clear();
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    const bool older = tick < block.tick;
    block.tick = tick;
    if (!older) continue;
    // Also a live block may still have its entry of the time when it was cached.
    if (victims_.contains(static_cast<std::uint32_t>(id.value())))
      victims_.update(static_cast<std::uint32_t>(id.value()), tick);
    if (block.is_cached()) unreferenced_.push_back(id);
  }
  if (!unreferenced_.empty()) tell_unreferenced(unreferenced_);
}

BlockId BlockPool::find(BlockHash hash) const {
  return hash_to_block_.find(hash, hash_of());
}

std::size_t BlockPool::find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const {
  require(out.size() >= hashes.size(), "out", out.size(), "must be at least as long as hashes");
  // Chunk by chunk, so that the misses of a chunk overlap: its buckets, which are also those where hashes that are not
  // found will soon be registered, then the records of the blocks that are probably meant.
  constexpr std::size_t chunk = 2 * detail::prefetch_distance;
  const auto prefetch_chunk = [&](std::size_t begin) {
    for (std::size_t i = begin; i < std::min(begin + chunk, hashes.size()); ++i) hash_to_block_.prefetch(hashes[i]);
  };
  prefetch_chunk(0);
  for (std::size_t begin = 0; begin < hashes.size(); begin += chunk) {
    prefetch_chunk(begin + chunk);
    const std::size_t end = std::min(begin + chunk, hashes.size());
    for (std::size_t i = begin; i < end; ++i) {
      out[i] = hash_to_block_.guess(hashes[i]);
      if (!out[i].valid()) break;
      prefetch(out[i]);
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (out[i].valid() && raw(out[i]).hash != hashes[i]) out[i] = find(hashes[i]);
      if (!out[i].valid()) return i;
    }
  }
  return hashes.size();
}

void BlockPool::prefetch(BlockId block) const noexcept {
  if (in_range(block)) detail::prefetch(&blocks_[block.index()]);
}

void BlockPool::reset() {
  listed_.clear();
  hashes_.clear();
  for (std::int32_t block = 0; block + 1 < block_count(); ++block) {
    const BlockId id{block};
    if (!raw(id).is_free()) {
      listed_.push_back(id);
      hashes_.push_back(raw(id).hash);
    }
    raw(id) = {};
  }
  hash_to_block_.clear();
  victims_.clear();
  cached_count_ = 0;
  free_.clear();
  for (std::int32_t block = 0; block + 1 < block_count(); ++block) free_.push_back(BlockId{block});
  if (listed_.empty()) return;
  for (BlockListener* listener : listeners_) listener->on_blocks_deregistered(listed_, hashes_);
}

void BlockPool::check_invariants() const {
  constexpr const char* structure = "BlockPool";
  std::vector<std::int32_t> children(blocks_.size(), 0);
  std::vector<bool> in_free(blocks_.size(), false);
  for (const BlockId block : free_) {
    require_invariant(block.valid() && block.value() + 1 < block_count(), structure, "the free list names a bad block");
    require_invariant(!in_free[block.index()], structure, "the free list names a block twice");
    in_free[block.index()] = true;
  }
  std::int32_t cached = 0;
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const Block& block = blocks_[index];
    require_invariant(block.ref_count >= 0, structure, "a ref count is negative");
    require_invariant(block.is_free() == (in_free[index] || index + 1 == blocks_.size()), structure,
                      "a free block is not in the free list, or a used one is");
    if (block.parent.valid()) {
      require_invariant(blocks_[block.parent.index()].hash > 0 && block.hash > 0, structure,
                        "a parent link joins blocks that are not registered");
      ++children[block.parent.index()];
    }
    cached += block.is_cached();
    require_invariant(!block.is_cached() || block.children > 0 || victims_.contains(static_cast<std::uint32_t>(index)),
                      structure, "a leaf is not offered for eviction");
    require_invariant(!block.is_cached() || policy_ == BlockPolicy::lru, structure, "ref_zero keeps a block");
  }
  std::vector<std::size_t> leaves;
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    require_invariant(children[index] == blocks_[index].children, structure, "a count of children is wrong");
    if (children[index] == 0) leaves.push_back(index);
  }
  // Peeling leaves reaches every block unless parents form a cycle.
  for (std::size_t next = 0; next < leaves.size(); ++next)
    if (const BlockId parent = blocks_[leaves[next]].parent; parent.valid() && --children[parent.index()] == 0)
      leaves.push_back(parent.index());
  require_invariant(leaves.size() == blocks_.size(), structure, "a block is its own ancestor");
  hash_to_block_.check_invariants(hash_of());
  std::size_t found = 0;
  for (std::size_t index = 0; index < blocks_.size(); ++index)
    found += blocks_[index].hash > 0 && find(blocks_[index].hash) == id_of(static_cast<std::uint32_t>(index));
  require_invariant(found == hash_to_block_.size(), structure, "the index names a block that it does not find");
  require_invariant(cached == cached_count_, structure, "the count of cached blocks is wrong");
  victims_.check_invariants();
}

}  // namespace stateport
