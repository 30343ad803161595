// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/block_pool.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/tenant_ledger.hpp"
#include "evict/victim_order.hpp"
#include "hash/block_hash_index.hpp"

#include <algorithm>
#include <utility>

namespace stateport {

namespace {

BlockId id_of(std::uint32_t index) noexcept {
  return BlockId{static_cast<std::int32_t>(index)};
}

}  // namespace

struct BlockPool::Books {
  /// The source of a VictimOrder of cached blocks.
  struct Candidates {
    const Books& books;
    [[nodiscard]] bool eligible(std::uint32_t index) const { return books.blocks[index].is_leaf(); }
    [[nodiscard]] VictimKey key(std::uint32_t index) const { return books.policy->key(books.facts(index)); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const {
      return static_cast<std::uint64_t>(books.blocks[index].tick);
    }
    [[nodiscard]] detail::TenantId tenant(std::uint32_t index) const { return books.owners->of(index); }
    [[nodiscard]] std::int64_t bytes(std::uint32_t) const { return books.owners->victim_bytes(); }
  };
  /// Facts for an order, beside the last use.
  struct History {
    std::uint64_t registered = 0;
    std::uint32_t hits = 0;
  };

  Books(std::size_t count, const BlockPoolOptions& options);

  [[nodiscard]] Candidates candidates() const noexcept { return {*this}; }
  [[nodiscard]] VictimFacts facts(std::uint32_t index) const noexcept;
  // Not inlined: by last use, which is the rule, there is nothing to note.
  [[gnu::noinline]] void note_uses(std::span<const BlockId> used) noexcept;
  [[gnu::noinline]] void note_registered(std::span<const BlockId> batch) noexcept;
  [[nodiscard]] Block& at(BlockId block) noexcept { return blocks[block.index()]; }
  [[nodiscard]] auto hash_of() const noexcept {
    return [this](BlockId block) { return blocks[block.index()].hash; };
  }
  void offer(BlockId block);
  [[nodiscard]] bool choose_victims(std::size_t count);
  void put_back_listed();
  [[nodiscard]] BlockId peel(BlockId leaf);
  [[nodiscard]] bool precedes(BlockId a, BlockId b) const noexcept;
  [[nodiscard]] bool is_ancestor(BlockId block, BlockId of) const noexcept;

  Table<Block> blocks;
  detail::BlockHashIndex<BlockId> hash_to_block;
  std::shared_ptr<EvictionPolicy> policy;  ///< null: by last use
  const detail::TenantOwners* owners;      ///< null: tenants have no shares
  VictimOrder<> victims;                   ///< every cached block without children; others are dropped when seen
  Table<History> history;                  ///< by block, unless by last use
  std::uint64_t registrations = 0;
  // Scratch of one call, with room for every block.
  std::vector<BlockId> listed;
  std::vector<BlockId> unreferenced;
  std::vector<BlockHash> hashes;
  std::vector<std::uint32_t> fresh;
};

BlockPool::Books::Books(std::size_t count, const BlockPoolOptions& options)
    : blocks(count),
      hash_to_block(count),
      policy(options.eviction),
      owners(options.owners),
      victims(policy ? policy->traits() : VictimTraits{.by_last_use = true},
              owners != nullptr ? &owners->ledger() : nullptr),
      history(victims.strategy() == VictimStrategy::list ? 0 : count) {
  victims.reserve(count);
  listed.reserve(count);
  unreferenced.reserve(count);
  hashes.reserve(count);
  fresh.reserve(count);
}

VictimFacts BlockPool::Books::facts(std::uint32_t index) const noexcept {
  return {.index = index,
          .used_tick = static_cast<std::uint64_t>(blocks[index].tick),
          .created_tick = history[index].registered,
          .hits = history[index].hits,
          .children = static_cast<std::uint32_t>(blocks[index].children)};
}

void BlockPool::Books::note_uses(std::span<const BlockId> used) noexcept {
  for (const BlockId block : used)
    if (history[block.index()].hits < UINT32_MAX) ++history[block.index()].hits;
}

void BlockPool::Books::note_registered(std::span<const BlockId> batch) noexcept {
  for (const std::uint32_t i : fresh) history[batch[i].index()] = {.registered = ++registrations, .hits = 1};
}

BlockPool::BlockPool(const BlockPoolOptions& options)
    : block_count_(options.blocks), unreferenced_(options.unreferenced), reserved_(options.reserved) {
  require(block_count_ >= 1, "blocks", block_count_, "must be at least 1: one block is reserved");
  if (!reserved_.valid()) reserved_ = BlockId{block_count_ - 1};
  require(reserved_.value() < block_count_, "reserved", reserved_, "must be one of the blocks");
  require(!options.eviction || options.eviction->learning() == nullptr, "eviction",
          options.eviction ? options.eviction->name() : "", "must be an order: a block pool knows no prompts");
  const auto count = static_cast<std::size_t>(block_count_);
  books_ = std::make_unique<Books>(count, options);
  has_history_ = !books_->history.empty();
  blocks_ = books_->blocks.data();
  free_.reserve(count);
  free_all();
}

BlockPool::~BlockPool() = default;

bool BlockPool::can_allocate(std::int32_t count, std::int32_t matched) const {
  require(count >= 0, "count", count, "must not be negative");
  require(matched >= 0, "matched", matched, "must not be negative");
  return count <= free_blocks() || count - free_blocks() <= cached_count_ - matched;
}

bool BlockPool::allocate(std::span<BlockId> out) {
  if (out.size() > free_.size()) {
    const std::size_t missing = out.size() - free_.size();
    if (missing > static_cast<std::size_t>(cached_count_)) return false;
    if (!evict(static_cast<std::int32_t>(missing))) return false;
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
  if (!out.empty()) books_->victims.prefetch(static_cast<std::uint32_t>(out.back().value()));  // the leaf of a prompt
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
  if (has_history_) [[unlikely]]
    books_->note_uses(blocks);
}

void BlockPool::release(std::span<const BlockId> blocks) {
  take_references(blocks);
  cached_count_ += static_cast<std::int32_t>(books_->unreferenced.size());
  for (const BlockId id : books_->unreferenced) books_->offer(id);
  if (!books_->unreferenced.empty()) report_unreferenced(books_->unreferenced);
  if (!books_->listed.empty()) {
    std::ranges::sort(books_->listed);
    free_listed(books_->listed);
  }
}

/// Sorts the blocks that reach ref 0 into those that stay cached (books_->unreferenced) and those to free
/// (books_->listed). All or nothing: references that were taken before the first block without a reference are given
/// back.
void BlockPool::take_references(std::span<const BlockId> blocks) {
  books_->unreferenced.clear();
  books_->listed.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!in_range(blocks[i]) || raw(blocks[i]).ref_count == 0) {
      for (std::size_t k = 0; k < i; ++k) ++raw(blocks[k]).ref_count;
      require(in_range(blocks[i]), "block", blocks[i], "is out of range");
      require(false, "block", blocks[i], "is released more often than it is held");
    }
    Block& block = raw(blocks[i]);
    if (--block.ref_count > 0) continue;
    (block.hash > 0 && unreferenced_ == UnreferencedBlocks::cached ? books_->unreferenced : books_->listed)
        .push_back(blocks[i]);
  }
}

void BlockPool::Books::offer(BlockId id) {
  const Block& block = at(id);
  // An entry of an earlier time may carry a later tick: set_last_use and retain may both set an older one.
  if (block.is_leaf()) victims.offer(candidates(), static_cast<std::uint32_t>(id.value()));
}

void BlockPool::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                                std::span<const BlockHash> parents) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  require(parents.empty() || parents.size() == blocks.size(), "parents", parents.size(), "must be as many as blocks");
  for (const BlockId block : blocks) require(!at(block).is_free(), "block", block, "is free");
  // books_->fresh holds positions in the batch; a block named twice is fresh once, so the reserve is enough.
  books_->fresh.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& block = raw(blocks[i]);
    if (hashes[i] <= 0 || block.hash == hashes[i]) continue;
    if (block.hash > 0) {
      for (const std::uint32_t k : books_->fresh) raw(blocks[k]).hash = hash_not_computed;
      require(false, "hashes", hashes[i], "differs from the hash that the block has");
    }
    block.hash = hashes[i];
    books_->fresh.push_back(static_cast<std::uint32_t>(i));
  }
  detail::for_each_prefetched(
      books_->fresh.size(), [&](std::size_t k) { books_->hash_to_block.prefetch(hashes[books_->fresh[k]]); },
      [&](std::size_t k) {
        books_->hash_to_block.assign(hashes[books_->fresh[k]], blocks[books_->fresh[k]], books_->hash_of());
      });
  if (has_history_) [[unlikely]]
    books_->note_registered(blocks);
  if (unreferenced_ == UnreferencedBlocks::cached && !parents.empty()) link_parents(blocks, hashes, parents);
}

/// Links the fresh blocks of a batch to their parents. A link that would close a cycle (only nonsense input makes one)
/// is left out, because a cycle could never be evicted.
void BlockPool::link_parents(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                             std::span<const BlockHash> parents) {
  for (const std::uint32_t i : books_->fresh) {
    if (parents[i] <= 0) continue;
    const BlockId parent = i > 0 && hashes[i - 1] == parents[i] ? blocks[i - 1] : find(parents[i]);
    if (!parent.valid()) continue;
    // Blocks get their parents in batch order, so in a sane batch the walk ends at once: a fresh block has no children.
    if (parent == blocks[i] || (raw(blocks[i]).children > 0 && books_->is_ancestor(blocks[i], parent))) continue;
    raw(blocks[i]).parent = parent;
    ++raw(parent).children;
  }
}

bool BlockPool::Books::is_ancestor(BlockId block, BlockId of) const noexcept {
  for (BlockId walk = of; walk.valid(); walk = blocks[walk.index()].parent)
    if (walk == block) return true;
  return false;
}

bool BlockPool::evict(std::int32_t count) {
  require(count >= 0, "count", count, "must not be negative");
  if (count > cached_count_ || !books_->choose_victims(static_cast<std::size_t>(count))) return false;
  cached_count_ -= count;
  free_listed(books_->listed);
  return true;
}

/// Peels leaves into listed. If they run out (a live block below a cached one), everything is put back.
bool BlockPool::Books::choose_victims(std::size_t count) {
  listed.clear();
  // A prompt goes from its end to its beginning without being queued block by block, until a lower leaf is met.
  BlockId leaf;
  while (listed.size() < count) {
    // Old blocks are in no cache any more: fetch those that will soon be looked at.
    if (const auto soon = victims.upcoming(detail::prefetch_distance)) detail::prefetch(&blocks[*soon]);
    const auto victim = victims.next(candidates());
    if (leaf.valid()) {
      // The victim may be that leaf itself, if it was a candidate before it had the child.
      while (leaf.valid() && listed.size() < count && (!victim || precedes(leaf, id_of(*victim)))) leaf = peel(leaf);
      if (leaf.valid()) offer(std::exchange(leaf, BlockId{}));
      if (listed.size() == count) break;
    }
    if (!victim) {
      put_back_listed();
      return false;
    }
    leaf = peel(id_of(*victim));
    if (leaf.valid() && victims.strategy() == VictimStrategy::draw) offer(std::exchange(leaf, BlockId{}));
  }
  if (leaf.valid()) offer(leaf);
  for (const BlockId id : listed) at(id).parent = BlockId{};
  return true;
}

void BlockPool::Books::put_back_listed() {
  for (const BlockId id : listed)
    if (at(id).parent.valid()) ++at(at(id).parent).children;
  for (const BlockId id : listed) offer(id);
}

/// Adds a leaf to listed and takes it out of its parent's count of children. Returns the parent if that made it a
/// leaf that can be evicted.
BlockId BlockPool::Books::peel(BlockId leaf) {
  victims.erase(candidates(), static_cast<std::uint32_t>(leaf.value()));
  listed.push_back(leaf);
  const BlockId parent = at(leaf).parent;
  if (!parent.valid()) return parent;
  --at(parent).children;
  return at(parent).is_leaf() ? parent : BlockId{};
}

/// The order of eviction.
bool BlockPool::Books::precedes(BlockId a, BlockId b) const noexcept {
  if (victims.strategy() == VictimStrategy::list) {
    const std::int64_t tick_a = blocks[a.index()].tick;
    const std::int64_t tick_b = blocks[b.index()].tick;
    return tick_a != tick_b ? tick_a < tick_b : a < b;
  }
  const VictimKey key_a = candidates().key(static_cast<std::uint32_t>(a.value()));
  const VictimKey key_b = candidates().key(static_cast<std::uint32_t>(b.value()));
  return key_a == key_b ? a < b : key_a < key_b;
}

/// Makes unreferenced blocks free and tells the listeners. Their parent links are gone already.
void BlockPool::free_listed(std::span<const BlockId> blocks) {
  books_->hashes.clear();
  for (const BlockId id : blocks) books_->hashes.push_back(raw(id).hash);
  detail::for_each_prefetched(
      blocks.size(), [&](std::size_t i) { books_->hash_to_block.prefetch(books_->hashes[i]); },
      [&](std::size_t i) {
        free_.push_back(blocks[i]);
        if (books_->hashes[i] <= 0) return;
        books_->hash_to_block.erase(books_->hashes[i], blocks[i]);
        raw(blocks[i]).hash = hash_not_computed;
        raw(blocks[i]).tick = 0;
      });
  if (blocks.empty()) return;
  report_deregistered(blocks, books_->hashes);
}

void BlockPool::forget(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) require(at(block).hash > 0, "block", block, "is not registered");
  constexpr std::int32_t forgotten = -1;  // children of a block, for now
  for (const BlockId id : blocks)
    if (raw(id).parent.valid()) --raw(raw(id).parent).children;
  for (const BlockId id : blocks) raw(id).children = forgotten;
  for (Block& block : books_->blocks)
    if (block.parent.valid() && (block.children == forgotten || raw(block.parent).children == forgotten)) {
      if (raw(block.parent).children != forgotten) books_->offer(block.parent);
      block.parent = {};
    }
  books_->listed.clear();
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    block.children = 0;
    books_->victims.erase(books_->candidates(), static_cast<std::uint32_t>(id.value()));
    if (block.is_cached()) {
      --cached_count_;
      books_->listed.push_back(id);
    } else {
      books_->hash_to_block.erase(block.hash, id);
      block.hash = hash_not_computed;
    }
  }
  free_listed(books_->listed);
}

void BlockPool::set_last_use(std::span<const BlockId> blocks, std::int64_t tick) {
  for (const BlockId block : blocks) require(!at(block).is_free(), "block", block, "is free");
  books_->unreferenced.clear();
  for (const BlockId id : blocks) {
    Block& block = raw(id);
    const bool older = tick < block.tick;
    block.tick = tick;
    // Also a live block may still have its entry of the time when it was cached.
    const auto index = static_cast<std::uint32_t>(id.value());
    if ((older || books_->victims.keys_may_shrink()) && books_->victims.contains(books_->candidates(), index))
      books_->victims.offer(books_->candidates(), index);
    if (!older) continue;
    if (block.is_cached()) books_->unreferenced.push_back(id);
  }
  if (!books_->unreferenced.empty()) report_unreferenced(books_->unreferenced);
}

BlockId BlockPool::find(BlockHash hash) const {
  return books_->hash_to_block.find(hash, books_->hash_of());
}

std::size_t BlockPool::find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const {
  require(out.size() >= hashes.size(), "out", out.size(), "must be at least as long as hashes");
  return books_->hash_to_block.find_prefix(hashes, out, books_->hash_of(), [this](BlockId block) { prefetch(block); });
}

void BlockPool::prefetch(BlockId block) const noexcept {
  if (in_range(block)) detail::prefetch(&blocks_[block.index()]);
}

void BlockPool::reset() {
  books_->listed.clear();
  books_->hashes.clear();
  for (std::int32_t block = 0; block < block_count_; ++block) {
    const BlockId id{block};
    if (!raw(id).is_free()) {
      books_->listed.push_back(id);
      books_->hashes.push_back(raw(id).hash);
    }
    raw(id) = {};
  }
  books_->hash_to_block.clear();
  books_->victims.clear();
  cached_count_ = 0;
  free_all();
  if (books_->listed.empty()) return;
  report_deregistered(books_->listed, books_->hashes);
}

void BlockPool::free_all() {
  free_.clear();
  for (std::int32_t block = 0; block < block_count_; ++block)
    if (BlockId{block} != reserved_) free_.push_back(BlockId{block});
}

void BlockPool::check_invariants() const {
  constexpr const char* structure = "BlockPool";
  std::vector<std::int32_t> children(books_->blocks.size(), 0);
  std::vector<bool> in_free(books_->blocks.size(), false);
  for (const BlockId block : free_) {
    require_invariant(in_range(block) && block != reserved_, structure, "the free list names a bad block");
    require_invariant(!in_free[block.index()], structure, "the free list names a block twice");
    in_free[block.index()] = true;
  }
  std::int32_t cached = 0;
  for (std::size_t index = 0; index < books_->blocks.size(); ++index) {
    const Block& block = blocks_[index];
    require_invariant(block.ref_count >= 0, structure, "a ref count is negative");
    require_invariant(block.is_free() == (in_free[index] || index == reserved_.index()), structure,
                      "a free block is not in the free list, or a used one is");
    if (block.parent.valid()) {
      require_invariant(blocks_[block.parent.index()].hash > 0 && block.hash > 0, structure,
                        "a parent link joins blocks that are not registered");
      ++children[block.parent.index()];
    }
    cached += block.is_cached();
    require_invariant(
        !block.is_leaf() || books_->victims.contains(books_->candidates(), static_cast<std::uint32_t>(index)),
        structure, "a leaf is not offered for eviction");
    require_invariant(!block.is_cached() || unreferenced_ == UnreferencedBlocks::cached, structure,
                      "a block that should be dropped is cached");
  }
  std::vector<std::size_t> leaves;
  for (std::size_t index = 0; index < books_->blocks.size(); ++index) {
    require_invariant(children[index] == blocks_[index].children, structure, "a count of children is wrong");
    if (children[index] == 0) leaves.push_back(index);
  }
  // Peeling leaves reaches every block unless parents form a cycle.
  for (std::size_t next = 0; next < leaves.size(); ++next)
    if (const BlockId parent = blocks_[leaves[next]].parent; parent.valid() && --children[parent.index()] == 0)
      leaves.push_back(parent.index());
  require_invariant(leaves.size() == books_->blocks.size(), structure, "a block is its own ancestor");
  books_->hash_to_block.check_invariants(books_->hash_of());
  std::size_t found = 0;
  for (std::size_t index = 0; index < books_->blocks.size(); ++index)
    found += blocks_[index].hash > 0 && find(blocks_[index].hash) == id_of(static_cast<std::uint32_t>(index));
  require_invariant(found == books_->hash_to_block.size(), structure, "the index names a block that it does not find");
  require_invariant(cached == cached_count_, structure, "the count of cached blocks is wrong");
  books_->victims.check_invariants(books_->candidates());
}

}  // namespace stateport
