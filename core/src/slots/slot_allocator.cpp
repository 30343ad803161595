// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/slot_allocator.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/victim_queue.hpp"
#include "hash/block_hash_index.hpp"
#include "slots/ranked_states.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport {

struct SlotAllocator::Books {
  static constexpr SlotId pending_slot{-3};  ///< in fresh

  struct Held {
    BlockHash hash = hash_not_computed;
    std::uint32_t batch = 0;  ///< number of the last batch that named its block
    bool orphan = false;      ///< pinned after its block lost it
  };
  struct Fresh {
    BlockId block;
    SlotId before;  ///< none or lost
  };

  Books(SlotPool& pool, BlockDirectory& directory, const SlotAllocatorOptions& allocator_options);

  [[nodiscard]] auto hash_of() const noexcept {
    return [this](SlotId slot) { return held[slot.index()].hash; };
  }
  [[nodiscard]] std::int64_t key_of(BlockId block) const;
  [[nodiscard]] bool evictable(BlockId block) const;
  void offer(BlockId block);
  void add_victim(BlockId block);
  void mark_batch(std::span<const BlockId> batch_blocks);
  void choose_victims(std::size_t count);
  void prefetch_victims() const noexcept;
  [[nodiscard]] SlotVictim victim(BlockId block) const;
  void take_from_chosen();
  void assign_slots();
  void forget_hash(SlotId slot) noexcept;
  void detach(BlockId block);

  SlotPool& slots;
  BlockDirectory& blocks;
  SlotAllocatorOptions options;
  Table<SlotId> slot_of;  ///< by block; negative ones differ
  Table<Held> held;       ///< by slot
  detail::BlockHashIndex<SlotId> hash_to_slot;
  VictimQueue victims;                   ///< every evictable block with a slot; others are dropped when seen
  std::unique_ptr<RankedStates> ranked;  ///< instead of victims if there is an eviction policy
  std::int64_t evictions = 0;
  std::uint32_t batch = 0;
  // Scratch of one call.
  std::vector<Fresh> fresh;
  std::vector<BlockId> chosen;
  std::vector<SlotId> given;
};

SlotAllocator::Books::Books(SlotPool& pool, BlockDirectory& directory, const SlotAllocatorOptions& allocator_options)
    : slots(pool),
      blocks(directory),
      options(allocator_options),
      slot_of(static_cast<std::size_t>(directory.block_count())),
      held(static_cast<std::size_t>(pool.capacity_slots())),
      hash_to_slot(held.size()) {
  if (options.eviction)
    ranked = std::make_unique<RankedStates>(options.eviction, blocks, held.size());
  else
    victims.reserve(slot_of.size());
  fresh.reserve(held.size());
  chosen.reserve(held.size());
  given.reserve(held.size());
}

SlotAllocator::SlotAllocator(SlotPool& slots, BlockDirectory& blocks, const SlotAllocatorOptions& options)
    : slots_(slots),
      blocks_(blocks),
      books_(std::make_unique<Books>(slots, blocks, options)),
      slot_of_(books_->slot_of.data()),
      block_count_(blocks.block_count()) {
  blocks_.add_listener(*this);
}

SlotAllocator::~SlotAllocator() {
  blocks_.remove_listener(*this);
}

std::int64_t SlotAllocator::Books::key_of(BlockId block) const {
  return options.policy == BlockPolicy::lru ? blocks.last_use_tick(block) : 0;
}

bool SlotAllocator::Books::evictable(BlockId block) const {
  const SlotId slot = slot_of[block.index()];
  return slot.valid() && blocks.ref_count(block) == 0 && slots.lock_count(slot) == 0;
}

void SlotAllocator::Books::offer(BlockId block) {
  if (evictable(block)) add_victim(block);
}

void SlotAllocator::Books::add_victim(BlockId block) {
  if (ranked) return ranked->offer(block);
  // An entry of an earlier time may carry a later tick: that of a pinned block was set back, for example.
  victims.update(static_cast<std::uint32_t>(block.value()), key_of(block));
}

std::size_t SlotAllocator::peek_victims(std::span<SlotVictim> out) {
  Books& books = *books_;
  std::vector<std::uint32_t> next(std::min(out.size(), books.held.size()));
  const auto eligible = [&](std::uint32_t index) { return books.evictable(BlockId{static_cast<std::int32_t>(index)}); };
  std::size_t found = 0;
  if (books.ranked) {
    found = books.ranked->peek(eligible, next);
  } else {
    const auto key = [&](std::uint32_t index) { return books.key_of(BlockId{static_cast<std::int32_t>(index)}); };
    for (; found < next.size(); ++found) {
      const auto victim = books.victims.top(eligible, key);
      if (!victim) break;
      next[found] = *victim;
      books.victims.erase(*victim);
    }
    for (std::size_t at = found; at-- > 0;) books.offer(BlockId{static_cast<std::int32_t>(next[at])});
  }
  for (std::size_t at = 0; at < found; ++at) out[at] = books.victim(BlockId{static_cast<std::int32_t>(next[at])});
  return found;
}

SlotDemand SlotAllocator::try_allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  require(slots.size() == blocks.size(), "slots", slots.size(), "must be as many as blocks");
  require_blocks(blocks);
  books_->mark_batch(blocks);
  const auto required = books_->fresh.size();
  const auto free = static_cast<std::size_t>(slots_.free_slots());
  books_->chosen.clear();
  if (required > free) books_->choose_victims(required - free);
  const SlotDemand demand{static_cast<std::int64_t>(required), static_cast<std::int64_t>(free + books_->chosen.size())};
  if (demand.met()) {
    books_->assign_slots();
    for (std::size_t i = 0; i < blocks.size(); ++i) slots[i] = slot_of_[blocks[i].index()];
  } else {
    for (const auto& [block, before] : books_->fresh) slot_of_[block.index()] = before;
    for (const BlockId victim : books_->chosen) books_->offer(victim);
  }
  // The search for victims dropped the members of this batch that it met.
  if (required > free)
    for (const BlockId block : blocks) books_->offer(block);
  return demand;
}

void SlotAllocator::allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  const SlotDemand demand = try_allocate(blocks, slots);
  if (!demand.met()) throw SlotCapacityError(demand.required, demand.available);
}

std::int64_t SlotAllocator::evict(std::int64_t states) {
  require(states >= 0, "states", states, "must not be negative");
  books_->mark_batch({});
  books_->chosen.clear();
  books_->given.clear();
  books_->choose_victims(static_cast<std::size_t>(std::min(states, std::int64_t{slots_.capacity_slots()})));
  books_->take_from_chosen();
  slots_.release(books_->given);
  return std::ssize(books_->given);
}

/// Marks the batch: the slots that its blocks have with a new number, blocks without one as pending, each once in
/// fresh.
void SlotAllocator::Books::mark_batch(std::span<const BlockId> batch_blocks) {
  fresh.clear();
  fresh.reserve(std::min(batch_blocks.size(), slot_of.size()));
  if (++batch == 0) {
    for (Held& entry : held) entry.batch = 0;
    batch = 1;
  }
  for (const BlockId block : batch_blocks) {
    SlotId& slot = slot_of[block.index()];
    if (slot.valid()) {
      held[slot.index()].batch = batch;
    } else if (slot != pending_slot) {
      fresh.push_back({block, slot});
      slot = pending_slot;
    }
  }
}

/// Takes up to `count` victims off the heap into chosen, in order of eviction. They keep their slots for now.
void SlotAllocator::Books::choose_victims(std::size_t count) {
  const auto eligible = [this](std::uint32_t index) {
    const SlotId slot = slot_of[index];
    return slot.valid() && held[slot.index()].batch != batch && evictable(BlockId{static_cast<std::int32_t>(index)});
  };
  const auto key = [this](std::uint32_t index) { return key_of(BlockId{static_cast<std::int32_t>(index)}); };
  while (ranked && chosen.size() < count) {
    const auto victim = ranked->top(eligible);
    if (!victim) return;
    chosen.push_back(BlockId{static_cast<std::int32_t>(*victim)});
    ranked->withdraw(chosen.back());
  }
  while (chosen.size() < count) {
    prefetch_victims();
    const auto victim = victims.top(eligible, key);
    if (!victim) return;
    victims.erase(*victim);
    chosen.push_back(BlockId{static_cast<std::int32_t>(*victim)});
  }
}

/// Old blocks are in no cache any more: their entries are fetched early, what the entries name a little later.
void SlotAllocator::Books::prefetch_victims() const noexcept {
  if (const auto later = victims.upcoming(2 * detail::prefetch_distance)) {
    detail::prefetch(&slot_of[*later]);
    blocks.prefetch(BlockId{static_cast<std::int32_t>(*later)});
  }
  if (const auto soon = victims.upcoming(detail::prefetch_distance)) {
    if (const SlotId slot = slot_of[*soon]; slot.valid()) {
      detail::prefetch(&held[slot.index()]);
      slots.prefetch(slot);
    }
  }
}

SlotVictim SlotAllocator::Books::victim(BlockId block) const {
  const SlotId slot = slot_of[block.index()];
  return {.block = block, .slot = slot, .tag = slots.tag(slot), .hash = held[slot.index()].hash};
}

/// Appends the slots of what is chosen to given; their blocks have lost them.
void SlotAllocator::Books::take_from_chosen() {
  detail::for_each_prefetched(
      chosen.size(), [&](std::size_t i) { hash_to_slot.prefetch(held[slot_of[chosen[i].index()].index()].hash); },
      [&](std::size_t i) {
        const SlotId slot = slot_of[chosen[i].index()];
        given.push_back(slot);
        if (options.on_victim) options.on_victim(victim(chosen[i]));
        slots.set_tag(slot, {});
        forget_hash(slot);
        slot_of[chosen[i].index()] = lost_slot;
        if (ranked) ranked->evict(chosen[i]);
      });
  evictions += static_cast<std::int64_t>(chosen.size());
}

void SlotAllocator::Books::assign_slots() {
  given.resize(fresh.size() - chosen.size());
  const bool enough = slots.allocate(given);
  STATEPORT_ASSERT(enough);
  static_cast<void>(enough);
  take_from_chosen();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const BlockId block = fresh[i].block;
    slot_of[block.index()] = given[i];
    detail::prefetch(&held[given[i].index()]);  // for the hash and the offer that follow
    if (!ranked) victims.prefetch(static_cast<std::uint32_t>(block.value()));
    slots.set_owner(given[i], block.value());
    if (ranked) ranked->store(block);
    offer(block);
  }
}

/// The entry of a hash belongs to the block that registered it last: only that block takes it away.
void SlotAllocator::Books::forget_hash(SlotId slot) noexcept {
  BlockHash& hash = held[slot.index()].hash;
  if (hash <= 0) return;
  hash_to_slot.erase(hash, slot);
  hash = hash_not_computed;
}

void SlotAllocator::Books::detach(BlockId block) {
  const SlotId slot = slot_of[block.index()];
  if (!slot.valid()) return;
  forget_hash(slot);
  if (ranked)
    ranked->lose(block);
  else
    victims.erase(static_cast<std::uint32_t>(block.value()));
  slot_of[block.index()] = SlotId{};
  if (slots.lock_count(slot) == 0) return slots.release(slot);
  slots.set_tag(slot, {});
  slots.set_owner(slot, SlotPool::caller);
  held[slot.index()].orphan = true;
}

void SlotAllocator::invalidate(std::span<const BlockId> blocks) {
  require_blocks(blocks);
  for (const BlockId block : blocks) books_->detach(block);
}

void SlotAllocator::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  require_blocks(blocks);
  for (const BlockId block : blocks) {
    if (slot_of_[block.index()].valid()) books_->detach(block);
    slot_of_[block.index()] = SlotId{};
    if (books_->ranked) books_->ranked->forget(block);
  }
}

void SlotAllocator::on_blocks_unreferenced(std::span<const BlockId> blocks) {
  require_blocks(blocks);
  // The directory says that their count is 0; the slot of a pinned state is passed over when its turn comes.
  for (const BlockId block : blocks)
    if (slot_of_[block.index()].valid()) books_->add_victim(block);
}

void SlotAllocator::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    require_block(blocks[i]);
    if (hashes[i] > 0) static_cast<void>(with_slot(blocks[i]));
  }
  detail::for_each_prefetched(
      blocks.size(),
      [&](std::size_t i) {
        prefetch(hashes[i]);
        if (hashes[i] > 0) detail::prefetch(&books_->held[slot_of_[blocks[i].index()].index()]);
      },
      [&](std::size_t i) {
        if (hashes[i] <= 0) return;
        const SlotId slot = slot_of_[blocks[i].index()];
        if (books_->held[slot.index()].hash != hashes[i]) books_->forget_hash(slot);
        books_->held[slot.index()].hash = hashes[i];
        books_->hash_to_slot.assign(hashes[i], slot, books_->hash_of());
      });
}

std::size_t SlotAllocator::registered_count() const noexcept {
  return books_->hash_to_slot.size();
}

void SlotAllocator::prefetch(BlockHash hash) const noexcept {
  books_->hash_to_slot.prefetch(hash);
}

std::int64_t SlotAllocator::evictions() const noexcept {
  return books_->evictions;
}

BlockId SlotAllocator::find(BlockHash hash) const {
  const SlotId slot = books_->hash_to_slot.find(hash, books_->hash_of());
  return slot.valid() ? BlockId{slots_.owner(slot)} : BlockId{};
}

BlockHash SlotAllocator::registered_hash(BlockId block) const {
  return books_->held[with_slot(block).index()].hash;
}

std::optional<FoundState> SlotAllocator::find_tagged(BlockHash hash, const StateTag& wanted) const {
  // A tag says more than the hash that finds it: one that matches spares the look at the hash.
  SlotId slot = books_->hash_to_slot.guess(hash);
  if (slot.valid() && check_tag(slots_.tag(slot), wanted) != TagCheck::match) {
    slot = books_->hash_to_slot.find(hash, books_->hash_of());
    if (slot.valid() && check_tag(slots_.tag(slot), wanted) != TagCheck::match) return std::nullopt;
  }
  if (!slot.valid()) return std::nullopt;
  const BlockId block{slots_.owner(slot)};
  if (!books_->ranked)
    books_->victims.prefetch(static_cast<std::uint32_t>(block.value()));  // its use will end with an offer
  return FoundState{0, block, slot};
}

std::optional<FoundState> SlotAllocator::find_longest_state(std::span<const BlockHash> hashes) const {
  for (std::size_t index = hashes.size(); index-- > 0;)
    if (const SlotId slot = books_->hash_to_slot.find(hashes[index], books_->hash_of()); slot.valid())
      return FoundState{index, BlockId{slots_.owner(slot)}, slot};
  return std::nullopt;
}

void SlotAllocator::note_served(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s) {
  check_hint(prompt.hint);
  require(prompt.usable_blocks >= 0, "usable_blocks", prompt.usable_blocks, "must not be negative");
  require(prompt.matched_blocks >= 0, "matched_blocks", prompt.matched_blocks, "must not be negative");
  require(prompt.hit_blocks >= 0, "hit_blocks", prompt.hit_blocks, "must not be negative");
  if (!books_->ranked) return;
  require(std::isfinite(now_s) && now_s >= books_->ranked->now_s(), "now_s", now_s,
          "must be finite and not before the last time");
  books_->ranked->serve(hashes, prompt, now_s, [this](BlockHash hash) -> std::optional<RankedStates::Found> {
    const SlotId slot = books_->hash_to_slot.find(hash, books_->hash_of());
    if (!slot.valid()) return std::nullopt;
    return RankedStates::Found{BlockId{slots_.owner(slot)}, slots_.tag(slot).token_count};
  });
}

void SlotAllocator::withdraw(BlockId block) {
  const SlotId slot = with_slot(block);
  slots_.set_tag(slot, {});
  books_->forget_hash(slot);
}

SlotCopy SlotAllocator::store_from(BlockId block, SlotId source) const {
  require(source.valid(), "source", source, "must not be negative");
  return SlotCopy::whole(source.value(), with_slot(block).value());
}

void SlotAllocator::store_from_live(std::span<const SlotId> slots, std::span<const SlotId> live_slots,
                                    std::span<SlotCopy> copies) const {
  require(live_slots.size() == slots.size(), "live_slots", live_slots.size(), "must be as many as slots");
  require(copies.size() == slots.size(), "copies", copies.size(), "must be as many as slots");
  for (const SlotId slot : slots) require(slots_.owner(slot) != SlotPool::caller, "slot", slot, "belongs to no block");
  for (const SlotId live : live_slots) require(live.valid(), "live_slot", live, "must not be negative");
  for (std::size_t i = 0; i < slots.size(); ++i) copies[i] = SlotCopy::whole(live_slots[i].value(), slots[i].value());
}

RestorePlan SlotAllocator::restore_to_live(BlockId block, SlotId live_slot, const StateTag& wanted) const {
  require(live_slot.valid(), "live_slot", live_slot, "must not be negative");
  const SlotId slot = slot_of(block);
  if (!slot.valid()) return {};
  const TagCheck check = check_tag(slots_.tag(slot), wanted);
  if (check != TagCheck::match) return {.check = check, .copy = {}};
  return {.check = check, .copy = SlotCopy::whole(slot.value(), live_slot.value())};
}

SlotId SlotAllocator::pin(BlockId block) {
  const SlotId slot = with_slot(block);
  slots_.lock(slot);
  return slot;
}

void SlotAllocator::unpin(SlotId slot) {
  slots_.unlock(slot);
  if (slots_.lock_count(slot) > 0) return;
  if (books_->held[slot.index()].orphan) {
    books_->held[slot.index()].orphan = false;
    slots_.release(slot);
  } else if (slots_.owner(slot) != SlotPool::caller) {
    books_->offer(BlockId{slots_.owner(slot)});
  }
}

void SlotAllocator::reset() {
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    if (slots_.is_free(slot) || (slots_.owner(slot) == SlotPool::caller && !books_->held[slot.index()].orphan))
      continue;
    while (slots_.lock_count(slot) > 0) slots_.unlock(slot);
    slots_.release(slot);
  }
  if (slots_.free_slots() == slots_.capacity_slots()) slots_.reset();
  std::ranges::fill(books_->held, Books::Held{});
  std::ranges::fill(books_->slot_of, SlotId{});
  books_->batch = 0;
  books_->hash_to_slot.clear();
  if (books_->ranked)
    books_->ranked->clear();
  else
    books_->victims.clear();
}

void SlotAllocator::check_invariants() const {
  constexpr const char* structure = "SlotAllocator";
  slots_.check_invariants();
  if (books_->ranked)
    books_->ranked->check_invariants();
  else
    books_->victims.check_invariants();
  books_->hash_to_slot.check_invariants(books_->hash_of());
  std::int32_t with_slots = 0;
  for (std::size_t index = 0; index < books_->slot_of.size(); ++index) {
    const SlotId slot = slot_of_[index];
    const BlockId block{static_cast<std::int32_t>(index)};
    require_invariant(slot.valid() || slot == SlotId{} || slot == lost_slot, structure,
                      "a block still waits for a slot");
    if (!slot.valid()) continue;
    ++with_slots;
    require_invariant(slots_.owner(slot) == block.value(), structure, "a slot has another owner");
    const auto candidate = static_cast<std::uint32_t>(index);
    require_invariant(!books_->evictable(block) ||
                          (books_->ranked ? books_->ranked->contains(candidate) : books_->victims.contains(candidate)),
                      structure, "an evictable block is not offered");
  }
  std::int32_t owned = 0;
  std::size_t found = 0;
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    const Books::Held& held = books_->held[slot.index()];
    const bool ours = !slots_.is_free(slot) && slots_.owner(slot) != SlotPool::caller;
    owned += ours;
    found += held.hash > 0 && books_->hash_to_slot.find(held.hash, books_->hash_of()) == slot;
    require_invariant(ours || held.hash <= 0, structure, "a slot without a block has a hash");
    require_invariant(!held.orphan || (!slots_.is_free(slot) && !ours && slots_.lock_count(slot) > 0), structure,
                      "an orphan slot is free, owned or not pinned");
  }
  require_invariant(owned == with_slots, structure, "the number of slots with an owner is wrong");
  require_invariant(found == books_->hash_to_slot.size(), structure, "the index names a slot that it does not find");
}

}  // namespace stateport
