// SPDX-License-Identifier: Apache-2.0
#include "serve/hash_budget.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"

#include <algorithm>

namespace stateport::detail {

HashBudget::HashBudget(RequestBook& book, HashedKv& kv, SlotPool& slots, SlotAllocator& allocator)
    : book_(book), kv_(kv), slots_(slots), allocator_(allocator), shares_(shares_memory(book.slots)) {
  if (shares_) victims_.reserve(static_cast<std::size_t>(slots_.capacity_slots()));
  if (book_.slots.arena.bytes == 0) return;
  marks_.resize(static_cast<std::size_t>(kv_.pool().block_count()));
  listed_.reserve(marks_.size());
}

void HashBudget::order_uses(RequestId id, std::int64_t known_tokens) {
  BlockPool& pool = kv_.pool();
  const std::span<const BlockId> blocks = kv_.blocks(id);
  const auto use = [&](BlockId block) {
    pool.advance_tick();
    pool.set_last_use({&block, 1}, pool.tick());
  };
  const std::int64_t reused = book_.opened_of(id).reused_tokens;
  const auto known = static_cast<std::size_t>(std::max(known_tokens, reused));
  const auto block_size = static_cast<std::size_t>(book_.options.block_size_tokens);
  for (std::size_t depth = blocks.size(); depth > known / block_size; --depth)
    if (allocator_.has_state(blocks[depth - 1])) use(blocks[depth - 1]);
  if (reused > 0) use(blocks[static_cast<std::size_t>(reused) / block_size - 1]);
}

void HashBudget::keep() {
  const std::int64_t budget_bytes = book_.slots.budget_bytes;
  const auto used_bytes = [this] {
    return book_.options.memory.of(kv_.used_blocks() * book_.options.block_size_tokens, states());
  };
  while (budget_bytes > 0 && used_bytes() > budget_bytes && evict_least()) {
  }
}

bool HashBudget::evict_least() {
  if (allocator_.evict(1) == 1) {
    drop_useless_of_victims();
    return true;
  }
  return kv_.pool().cached_blocks() > 0 && kv_.pool().evict(1);
}

void HashBudget::drop_useless_of_victims() {
  for (const BlockId block : victims_) drop_useless(block);
  victims_.clear();
}

void HashBudget::drop_useless(BlockId block) {
  BlockPool& pool = kv_.pool();
  const auto useless = [&] {
    return block.valid() && pool.ref_count(block) == 0 && !pool.is_free(block) && pool.child_count(block) == 0 &&
           !allocator_.has_state(block);
  };
  while (useless()) {
    const BlockId before = pool.parent(block);
    pool.set_last_use({&block, 1}, 0);  // no block that a request used has this tick, so that this one goes first
    const bool gone = pool.evict(1);
    require_invariant(gone && pool.is_free(block), "HashBudget", "another block went than the useless one");
    block = before;
  }
}

std::int64_t HashBudget::states() const noexcept {
  return slots_.capacity_slots() - slots_.free_slots() - slots_.closed_slots() -
         (book_.slots.separate_checkpoints ? 0 : book_.options.max_requests);
}

std::int32_t HashBudget::free_numbers(MemoryPart part) const noexcept {
  return part == MemoryPart::kv ? kv_.pool().free_blocks() : slots_.free_slots();
}

bool HashBudget::is_free(MemoryPart part, std::int32_t number) const {
  if (part == MemoryPart::states) return slots_.is_free(SlotId{number});
  return BlockId{number} != kv_.pool().reserved() && kv_.pool().is_free(BlockId{number});
}

void HashBudget::close(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) return kv_.pool().close(first, count);
  slots_.close(first, count);
}

void HashBudget::open(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) return kv_.pool().open(first, count);
  slots_.open(first, count);
}

bool HashBudget::is_evictable(SlotId slot) const {
  return !slots_.is_free(slot) && slots_.owner(slot) != SlotPool::caller && slots_.lock_count(slot) == 0;
}

bool HashBudget::evict_held_state() {
  for (std::int32_t slot = 0; slot < slots_.capacity_slots(); ++slot)
    if (allocator_.evict_slot(SlotId{slot})) {
      drop_useless_of_victims();
      return true;
    }
  return false;
}

void HashBudget::count_evictable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) {
  std::ranges::fill(by_extent, 0);
  const BlockPool& pool = kv_.pool();
  const std::int32_t numbers = part == MemoryPart::kv ? pool.block_count() : slots_.capacity_slots();
  for (std::int32_t i = 0; i < numbers; ++i)
    by_extent[static_cast<std::size_t>(i / count)] +=
        part == MemoryPart::kv ? pool.ref_count(BlockId{i}) == 0 && !pool.is_free(BlockId{i}) : is_evictable(SlotId{i});
}

void HashBudget::clear(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) return clear_blocks(first, count);
  for (std::int32_t slot = first; slot < first + count; ++slot) static_cast<void>(allocator_.evict_slot(SlotId{slot}));
  drop_useless_of_victims();
}

/// They go first, because no block that a request used has their tick.
void HashBudget::clear_blocks(std::int32_t first, std::int32_t count) {
  mark_blocks(first, count);
  listed_.clear();
  for (std::int32_t block = 0; std::cmp_less(block, marks_.size()); ++block)
    if (marks_[BlockId{block}.index()] == Mark::evict) listed_.push_back(BlockId{block});
  kv_.pool().set_last_use(listed_, 0);
  const bool gone = kv_.pool().evict(static_cast<std::int32_t>(listed_.size()));
  require_invariant(gone && std::ranges::all_of(listed_, [&](BlockId block) { return kv_.pool().is_free(block); }),
                    "HashBudget", "other blocks went than those of the extent");
}

/// Marks the cached blocks of the range and all blocks below them. A block above one that a request holds stays.
void HashBudget::mark_blocks(std::int32_t first, std::int32_t count) {
  const BlockPool& pool = kv_.pool();
  const std::int32_t blocks = pool.block_count();
  const auto mark = [&](BlockId block) -> Mark& { return marks_[block.index()]; };
  std::ranges::fill(marks_, Mark::unknown);
  for (std::int32_t i = 0; i < blocks; ++i) {
    const BlockId block{i};
    if (pool.ref_count(block) > 0)
      for (BlockId at = block; at.valid() && mark(at) != Mark::keep; at = pool.parent(at)) mark(at) = Mark::keep;
    else if (pool.is_free(block))
      mark(block) = Mark::keep;
  }
  for (std::int32_t i = first; i < first + count; ++i)
    if (mark(BlockId{i}) == Mark::unknown) mark(BlockId{i}) = Mark::evict;
  for (std::int32_t i = 0; i < blocks; ++i) {
    BlockId known{i};
    while (known.valid() && mark(known) == Mark::unknown) known = pool.parent(known);
    const Mark found = known.valid() ? mark(known) : Mark::keep;
    for (BlockId at{i}; at != known; at = pool.parent(at)) mark(at) = found;
  }
}

}  // namespace stateport::detail
