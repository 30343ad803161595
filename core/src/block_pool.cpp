// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/block_pool.hpp>

#include <stateport/core/error.hpp>
#include <stateport/core/prefetch.hpp>

#include <algorithm>

namespace stateport {

BlockPool::BlockPool(const BlockPoolOptions& options) : policy_(options.policy) {
  require(options.blocks >= 1, "blocks", options.blocks, "must be at least 1: the last block is a dummy");
  const auto count = static_cast<std::size_t>(options.blocks);
  blocks_.resize(count);
  free_.reserve(count);
  hash_to_block_.reserve(count);
  victims_.reserve(count);
  listed_.reserve(count);
  unreferenced_.reserve(count);
  hashes_.reserve(count);
  fresh_.reserve(count);
  for (std::int32_t block = 0; block + 1 < options.blocks; ++block) free_.push_back(BlockId{block});
}

const BlockPool::Block& BlockPool::at(BlockId block) const {
  require(block.valid() && block.value() < block_count(), "block", block, "is out of range");
  return blocks_[block.index()];
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
  for (const BlockId block : out) {
    raw(block).ref_count = 1;
    raw(block).tick = tick_;
  }
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
  collect_unreferenced(blocks);
  if (!unreferenced_.empty()) tell_unreferenced(unreferenced_);
  if (!listed_.empty()) {
    std::ranges::sort(listed_);
    free_listed(listed_);
  }
}

/// All or nothing: what was taken before the first block that has no reference left is given back.
void BlockPool::take_references(std::span<const BlockId> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool in_range = blocks[i].valid() && blocks[i].value() < block_count();
    if (in_range && raw(blocks[i]).ref_count > 0) {
      --raw(blocks[i]).ref_count;
      continue;
    }
    for (std::size_t k = 0; k < i; ++k) ++raw(blocks[k]).ref_count;
    require(in_range, "block", blocks[i], "is out of range");
    require(false, "block", blocks[i], "is released more often than it is held");
  }
}

/// Sorts the blocks at ref 0 into those that stay cached (unreferenced_) and those to free (listed_), each once. A
/// count of -1 marks the ones that are already listed.
void BlockPool::collect_unreferenced(std::span<const BlockId> blocks) {
  unreferenced_.clear();
  listed_.clear();
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    if (block.ref_count != 0) continue;
    block.ref_count = -1;
    (block.hash > 0 && policy_ == BlockPolicy::lru ? unreferenced_ : listed_).push_back(id);
  }
  for (const BlockId id : listed_) raw(id).ref_count = 0;
  for (const BlockId id : unreferenced_) {
    raw(id).ref_count = 0;
    ++cached_count_;
    offer(id);
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
      for (const std::size_t k : fresh_) raw(blocks[k]).hash = hash_not_computed;
      require(false, "hashes", hashes[i], "differs from the hash that the block has");
    }
    block.hash = hashes[i];
    fresh_.push_back(i);
  }
  // Lookups that depend on nothing overlap their cache misses; the insertions then find their buckets at hand.
  std::size_t known = 0;
  for (const std::size_t i : fresh_) known += hash_to_block_.count(hashes[i]);
  detail::keep(known);
  listed_.clear();
  hashes_.clear();
  for (const std::size_t i : fresh_) {
    hash_to_block_[hashes[i]] = blocks[i];
    listed_.push_back(blocks[i]);
    hashes_.push_back(parents.empty() ? root_hash : parents[i]);
  }
  if (policy_ == BlockPolicy::lru) link_parents(hashes_);
}

/// Links listed_[i] to the block that has parents[i]. A link that would close a cycle (only nonsense input makes one)
/// is left out, because a cycle could never be evicted.
void BlockPool::link_parents(std::span<const BlockHash> parents) {
  for (std::size_t i = 0; i < listed_.size(); ++i) {
    const BlockId parent = parents[i] > 0 ? find(parents[i]) : BlockId{};
    if (!parent.valid()) continue;
    // Blocks get their parents in batch order, so in a sane batch the walk ends at once: a fresh block has no children.
    if (parent == listed_[i] || (raw(listed_[i]).children > 0 && is_ancestor(listed_[i], parent))) continue;
    raw(listed_[i]).parent = parent;
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

/// Peels leaves into listed_. Each leaves its parent's count of children, which may make the parent the next leaf. If
/// the leaves run out (a live block below a cached one), the counts are put back.
bool BlockPool::choose_victims(std::size_t count) {
  listed_.clear();
  const auto eligible = [this](std::uint32_t index) {
    return blocks_[index].is_cached() && blocks_[index].children == 0;
  };
  const auto tick_of = [this](std::uint32_t index) { return blocks_[index].tick; };
  while (listed_.size() < count) {
    // Old blocks are in no cache any more: fetch those that will soon be looked at.
    if (const auto soon = victims_.upcoming(detail::prefetch_distance)) detail::prefetch(&blocks_[*soon]);
    const auto leaf = victims_.top(eligible, tick_of);
    if (!leaf) {
      for (const BlockId id : listed_)
        if (raw(id).parent.valid()) ++raw(raw(id).parent).children;
      for (const BlockId id : listed_) offer(id);
      return false;
    }
    victims_.erase(*leaf);
    const BlockId id{static_cast<std::int32_t>(*leaf)};
    listed_.push_back(id);
    if (const BlockId parent = raw(id).parent; parent.valid()) {
      --raw(parent).children;
      offer(parent);
    }
  }
  for (const BlockId id : listed_) raw(id).parent = BlockId{};
  return true;
}

/// Makes unreferenced blocks free and tells the listeners. Their parent links are gone already.
void BlockPool::free_listed(std::span<const BlockId> blocks) {
  hashes_.clear();
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    hashes_.push_back(block.hash);
    if (block.hash > 0) {
      // Another block may have taken over the entry.
      const auto entry = hash_to_block_.find(block.hash);
      if (entry != hash_to_block_.end() && entry->second == id) hash_to_block_.erase(entry);
      block.hash = hash_not_computed;
      block.tick = 0;
    }
    free_.push_back(id);
  }
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
  const auto entry = hash_to_block_.find(hash);
  return entry == hash_to_block_.end() ? BlockId{} : entry->second;
}

std::size_t BlockPool::find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const {
  require(out.size() >= hashes.size(), "out", out.size(), "must be at least as long as hashes");
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    out[i] = find(hashes[i]);
    if (!out[i].valid()) return i;
  }
  return hashes.size();
}

void BlockPool::prefetch(BlockId block) const noexcept {
  if (block.valid() && block.index() < blocks_.size()) detail::prefetch(&blocks_[block.index()]);
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
  for (const auto& [hash, block] : hash_to_block_)
    require_invariant(blocks_[block.index()].hash == hash, structure, "the map names a block with another hash");
  require_invariant(cached == cached_count_, structure, "the count of cached blocks is wrong");
  victims_.check_invariants();
}

}  // namespace stateport
