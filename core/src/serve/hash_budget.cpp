// SPDX-License-Identifier: Apache-2.0
#include "serve/hash_budget.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {

HashBudget::HashBudget(RequestBook& book, HashedKv& kv, SlotPool& slots, SlotAllocator& allocator)
    : book_(book), kv_(kv), slots_(slots), allocator_(allocator), shares_(shares_memory(book.slots)) {
  if (shares_ || book_.tenants) victims_.reserve(static_cast<std::size_t>(slots_.capacity_slots()));
  if (book_.tenants) rests_.resize(book_.tenants->ledger().size());
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
  if (reused > 0 && !blocks.empty()) use(blocks[static_cast<std::size_t>(reused) / block_size - 1]);
}

void HashBudget::keep() {
  const std::int64_t budget_bytes = book_.slots.budget_bytes;
  const auto used_bytes = [this] {
    return book_.options.memory.of(kv_.used_blocks() * book_.options.block_size_tokens, states());
  };
  while (budget_bytes > 0 && used_bytes() > budget_bytes && evict_least()) {
  }
}

bool HashBudget::is_takeable(BlockId block) const {
  if (!book_.tenants) return true;
  const TenantOwners& owners = book_.tenants->kv();
  return owners.ledger().turn(owners.of(block.index()), owners.bytes_each()) != TenantLedger::Turn::never;
}

/// Goes on with useless KV that floors kept. False: they still keep all of it.
bool HashBudget::drop_rest() {
  const std::int32_t before = kv_.pool().free_blocks();
  for (BlockId& rest : rests_)
    if (rest.valid() && (kv_.pool().is_free(rest) || is_takeable(rest))) drop_useless(std::exchange(rest, BlockId{}));
  return kv_.pool().free_blocks() > before;
}

bool HashBudget::evict_own() {
  trims_ = true;
  const bool evicted = evict_least();
  trims_ = false;
  return evicted;
}

bool HashBudget::evict_least() {
  if (!rests_.empty() && drop_rest()) return true;
  if (evict_demoted_state() || kv_.evict_demoted()) return true;
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
    if (!is_takeable(block)) {
      rests_[book_.tenants->kv().of(block.index())] = block;
      return;
    }
    const BlockId before = pool.parent(block);
    pool.set_last_use({&block, 1}, 0);  // no block that a request used has this tick, so that this one goes first
    const auto evict = [&] { return pool.evict(1); };
    const bool gone = book_.tenants ? book_.tenants->trim(block, evict) : evict();
    require_invariant(gone && pool.is_free(block), "HashBudget", "another block went than the useless one");
    block = before;
  }
}

std::int64_t HashBudget::states() const noexcept {
  return slots_.capacity_slots() - slots_.free_slots() - slots_.closed_slots() -
         (book_.slots.separate_checkpoints ? 0 : book_.options.max_requests);
}

std::int32_t HashBudget::free_numbers(MemoryPart part) const noexcept {
  if (part == MemoryPart::states) return slots_.free_slots();
  return static_cast<std::int32_t>(kv_.places().numbers().available());
}

bool HashBudget::is_free(MemoryPart part, std::int32_t number) const {
  return part == MemoryPart::states ? slots_.is_free(SlotId{number}) : kv_.places().numbers().is_free(number);
}

void HashBudget::close(MemoryPart part, std::span<const NumberRange> ranges) {
  if (part == MemoryPart::kv) return kv_.places().numbers().close(ranges);
  slots_.close(ranges);
}

void HashBudget::open(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) return kv_.places().numbers().open(first, count);
  slots_.open(first, count);
}

bool HashBudget::is_movable(MemoryPart part, std::int32_t number) const {
  if (part == MemoryPart::kv) {
    const BlockId block = kv_.places().at(number);
    return block.valid() && kv_.pool().ref_count(block) == 0;
  }
  const SlotId slot{number};
  return !slots_.is_free(slot) && slots_.owner(slot) != SlotPool::caller && slots_.lock_count(slot) == 0 &&
         (!book_.tenants || book_.tenants->is_movable(slot));
}

void HashBudget::count_movable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) {
  std::ranges::fill(by_extent, 0);
  const std::int32_t numbers = part == MemoryPart::kv ? kv_.pool().block_count() : slots_.capacity_slots();
  for (std::int32_t i = 0; i < numbers; ++i) by_extent[static_cast<std::size_t>(i / count)] += is_movable(part, i);
}

void HashBudget::vacate(MemoryPart part, std::vector<SlotCopy>& copies) {
  if (part == MemoryPart::states) {
    for (std::int32_t slot = 0; slot < slots_.capacity_slots(); ++slot)
      if (slots_.is_closed(SlotId{slot})) static_cast<void>(allocator_.evict_slot(SlotId{slot}));
    return drop_useless_of_victims();
  }
  for (std::int32_t i = 0; i < kv_.pool().block_count(); ++i)
    if (kv_.places().numbers().is_closed(i) && is_movable(part, i))
      copies.push_back(SlotCopy::whole(i, kv_.places().move(i)));
}

bool HashBudget::evict_demoted_state() {
  if (!book_.sessions) return false;
  const std::int32_t slot = book_.sessions->next(MemoryPart::states, 0, [&](std::int32_t candidate) {
    const SlotId state{candidate};
    if (candidate >= slots_.capacity_slots() || slots_.is_free(state) || slots_.owner(state) == SlotPool::caller)
      return false;
    const BlockId block{slots_.owner(state)};
    return slots_.lock_count(state) == 0 && kv_.pool().ref_count(block) == 0 &&
           book_.sessions->is_demoted_kv(block.value()) &&
           (!book_.tenants || book_.tenants->is_takeable(block.value()));
  });
  if (slot < 0 || !allocator_.evict_slot(SlotId{slot})) return false;
  drop_useless_of_victims();
  return true;
}

/// Goes round the slots, so that a search does not begin anew with those that it could not evict.
bool HashBudget::evict_held_state() {
  const std::int32_t slots = slots_.capacity_slots();
  for (std::int32_t i = 0; i < slots; ++i) {
    next_held_ = next_held_ + 1 < slots ? next_held_ + 1 : 0;
    if (!is_movable(MemoryPart::states, next_held_) || !allocator_.evict_slot(SlotId{next_held_})) continue;
    drop_useless_of_victims();
    return true;
  }
  return false;
}

}  // namespace stateport::detail
