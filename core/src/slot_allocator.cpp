// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slot_allocator.hpp>

#include <stateport/core/error.hpp>
#include <stateport/core/prefetch.hpp>

#include <algorithm>

namespace stateport {

SlotAllocator::SlotAllocator(SlotPool& slots, BlockDirectory& blocks, const SlotAllocatorOptions& options)
    : slots_(slots), blocks_(blocks), options_(options) {
  const auto slot_count = static_cast<std::size_t>(slots.capacity_slots());
  const auto block_count = static_cast<std::size_t>(blocks.block_count());
  entries_.resize(block_count);
  hash_to_block_.reserve(slot_count);
  victims_.reserve(block_count);
  orphans_.resize(slot_count, false);
  fresh_.reserve(slot_count);
  chosen_.reserve(slot_count);
  given_.reserve(slot_count);
  blocks_.add_listener(*this);
}

SlotAllocator::~SlotAllocator() {
  blocks_.remove_listener(*this);
}

void SlotAllocator::require_block(BlockId block) const {
  require(block.valid() && block.index() < entries_.size(), "block", block, "is out of range");
}

const SlotAllocator::Entry& SlotAllocator::with_slot(BlockId block) const {
  require_block(block);
  const Entry& entry = entries_[block.index()];
  require(entry.slot.valid(), "block", block, "has no state");
  return entry;
}

SlotId SlotAllocator::slot_of(BlockId block) const {
  require_block(block);
  return entries_[block.index()].slot;
}

bool SlotAllocator::was_evicted(BlockId block) const {
  require_block(block);
  return entries_[block.index()].evicted;
}

std::int64_t SlotAllocator::key_of(BlockId block) const {
  return options_.policy == BlockPolicy::lru ? blocks_.last_use_tick(block) : 0;
}

bool SlotAllocator::evictable(BlockId block) const {
  const Entry& entry = entries_[block.index()];
  return entry.slot.valid() && blocks_.ref_count(block) == 0 && slots_.lock_count(entry.slot) == 0;
}

void SlotAllocator::offer(BlockId block) {
  // An entry of an earlier time may carry a later tick: that of a pinned block was set back, for example.
  if (evictable(block)) victims_.update(static_cast<std::uint32_t>(block.value()), key_of(block));
}

SlotDemand SlotAllocator::try_allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  require(slots.size() == blocks.size(), "slots", slots.size(), "must be as many as blocks");
  for (const BlockId block : blocks) require_block(block);
  mark_batch(blocks);
  const auto required = fresh_.size();
  const auto free = static_cast<std::size_t>(slots_.free_slots());
  chosen_.clear();
  if (required > free) choose_victims(required - free);
  const SlotDemand demand{static_cast<std::int64_t>(required), static_cast<std::int64_t>(free + chosen_.size())};
  if (demand.met()) {
    assign_slots();
    for (std::size_t i = 0; i < blocks.size(); ++i) slots[i] = entries_[blocks[i].index()].slot;
  } else {
    for (const BlockId victim : chosen_) offer(victim);
  }
  // The search for victims dropped the members of this batch that it met.
  if (required > free)
    for (const BlockId block : blocks) offer(block);
  return demand;
}

void SlotAllocator::allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  const SlotDemand demand = try_allocate(blocks, slots);
  if (!demand.met()) throw SlotCapacityError(demand.required, demand.available);
}

/// Numbers the batch and collects its blocks without a slot, each once, in fresh_.
void SlotAllocator::mark_batch(std::span<const BlockId> blocks) {
  fresh_.clear();
  fresh_.reserve(std::min(blocks.size(), entries_.size()));
  if (++batch_ == 0) {
    for (Entry& entry : entries_) entry.batch = 0;
    batch_ = 1;
  }
  for (const BlockId block : blocks) {
    Entry& entry = entries_[block.index()];
    if (entry.batch == batch_) continue;
    entry.batch = batch_;
    if (!entry.slot.valid()) fresh_.push_back(block);
  }
}

/// Takes up to `count` victims off the heap into chosen_, in order of eviction. They keep their slots for now.
void SlotAllocator::choose_victims(std::size_t count) {
  const auto eligible = [this](std::uint32_t index) {
    return entries_[index].batch != batch_ && evictable(BlockId{static_cast<std::int32_t>(index)});
  };
  const auto key = [this](std::uint32_t index) { return key_of(BlockId{static_cast<std::int32_t>(index)}); };
  while (chosen_.size() < count) {
    prefetch_victims();
    const auto victim = victims_.top(eligible, key);
    if (!victim) return;
    victims_.erase(*victim);
    chosen_.push_back(BlockId{static_cast<std::int32_t>(*victim)});
  }
}

/// Old blocks are in no cache any more: their entries are fetched early, what the entries name a little later.
void SlotAllocator::prefetch_victims() const noexcept {
  if (const auto later = victims_.upcoming(2 * detail::prefetch_distance)) {
    detail::prefetch(&entries_[*later]);
    blocks_.prefetch(BlockId{static_cast<std::int32_t>(*later)});
  }
  if (const auto soon = victims_.upcoming(detail::prefetch_distance)) slots_.prefetch(entries_[*soon].slot);
}

void SlotAllocator::assign_slots() {
  given_.resize(fresh_.size() - chosen_.size());
  const bool enough = slots_.allocate(given_);
  STATEPORT_ASSERT(enough);
  static_cast<void>(enough);
  for (const BlockId victim : chosen_) {
    Entry& entry = entries_[victim.index()];
    given_.push_back(entry.slot);
    slots_.set_tag(entry.slot, {});
    forget_hash(victim);
    entry.slot = SlotId{};
    entry.evicted = true;
  }
  evictions_ += static_cast<std::int64_t>(chosen_.size());
  for (std::size_t i = 0; i < fresh_.size(); ++i) {
    Entry& entry = entries_[fresh_[i].index()];
    entry.slot = given_[i];
    entry.evicted = false;
    slots_.set_owner(given_[i], fresh_[i].value());
    offer(fresh_[i]);
  }
}

/// The entry of a hash belongs to the block that registered it last: only that block takes it away.
void SlotAllocator::forget_hash(BlockId block) {
  Entry& entry = entries_[block.index()];
  if (entry.hash <= 0) return;
  const auto found = hash_to_block_.find(entry.hash);
  if (found != hash_to_block_.end() && found->second == block) hash_to_block_.erase(found);
  entry.hash = hash_not_computed;
}

void SlotAllocator::detach(BlockId block) {
  Entry& entry = entries_[block.index()];
  const SlotId slot = entry.slot;
  if (!slot.valid()) return;
  forget_hash(block);
  victims_.erase(static_cast<std::uint32_t>(block.value()));
  entry.slot = SlotId{};
  if (slots_.lock_count(slot) == 0) return slots_.release(slot);
  slots_.set_tag(slot, {});
  slots_.set_owner(slot, SlotPool::caller);
  orphans_[slot.index()] = true;
}

void SlotAllocator::invalidate(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) require_block(block);
  for (const BlockId block : blocks) detach(block);
}

void SlotAllocator::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  for (const BlockId block : blocks) require_block(block);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    detach(blocks[i]);
    entries_[blocks[i].index()].evicted = false;
  }
}

void SlotAllocator::on_blocks_unreferenced(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) require_block(block);
  for (const BlockId block : blocks)
    if (evictable(block)) victims_.update(static_cast<std::uint32_t>(block.value()), key_of(block));
}

void SlotAllocator::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    require_block(blocks[i]);
    if (hashes[i] > 0) static_cast<void>(with_slot(blocks[i]));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Entry& entry = entries_[blocks[i].index()];
    if (hashes[i] <= 0) continue;
    if (entry.hash != hashes[i]) forget_hash(blocks[i]);
    entry.hash = hashes[i];
    hash_to_block_[hashes[i]] = blocks[i];
  }
}

BlockId SlotAllocator::find(BlockHash hash) const {
  const auto entry = hash_to_block_.find(hash);
  return entry == hash_to_block_.end() ? BlockId{} : entry->second;
}

std::optional<FoundState> SlotAllocator::find_longest_state(std::span<const BlockHash> hashes) const {
  for (std::size_t index = hashes.size(); index-- > 0;)
    if (const BlockId block = find(hashes[index]); block.valid())
      return FoundState{index, block, entries_[block.index()].slot};
  return std::nullopt;
}

void SlotAllocator::set_tag(BlockId block, const StateTag& tag) {
  slots_.set_tag(with_slot(block).slot, tag);
}

const StateTag& SlotAllocator::tag(BlockId block) const {
  return slots_.tag(with_slot(block).slot);
}

void SlotAllocator::withdraw(BlockId block) {
  slots_.set_tag(with_slot(block).slot, {});
  forget_hash(block);
}

SlotCopy SlotAllocator::store_from(BlockId block, SlotId source) const {
  require(source.valid(), "source", source, "must not be negative");
  return SlotCopy::whole(source.value(), with_slot(block).slot.value());
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
  const SlotId slot = with_slot(block).slot;
  slots_.lock(slot);
  return slot;
}

void SlotAllocator::unpin(SlotId slot) {
  slots_.unlock(slot);
  if (slots_.lock_count(slot) > 0) return;
  if (orphans_[slot.index()]) {
    orphans_[slot.index()] = false;
    slots_.release(slot);
  } else if (slots_.owner(slot) != SlotPool::caller) {
    offer(BlockId{slots_.owner(slot)});
  }
}

void SlotAllocator::reset() {
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    if (slots_.is_free(slot) || (slots_.owner(slot) == SlotPool::caller && !orphans_[slot.index()])) continue;
    while (slots_.lock_count(slot) > 0) slots_.unlock(slot);
    slots_.release(slot);
  }
  if (slots_.free_slots() == slots_.capacity_slots()) slots_.reset();
  orphans_.assign(orphans_.size(), false);
  for (Entry& entry : entries_) entry = {};
  batch_ = 0;
  hash_to_block_.clear();
  victims_.clear();
}

void SlotAllocator::check_invariants() const {
  constexpr const char* structure = "SlotAllocator";
  slots_.check_invariants();
  victims_.check_invariants();
  std::int32_t with_slots = 0;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    const Entry& entry = entries_[index];
    const BlockId block{static_cast<std::int32_t>(index)};
    require_invariant(entry.slot.valid() || entry.hash <= 0, structure, "a block without a slot has a hash");
    if (!entry.slot.valid()) continue;
    ++with_slots;
    require_invariant(slots_.owner(entry.slot) == block.value(), structure, "a slot has another owner");
    require_invariant(!entry.evicted, structure, "a block with a slot counts as evicted");
    require_invariant(!evictable(block) || victims_.contains(static_cast<std::uint32_t>(index)), structure,
                      "an evictable block is not offered");
  }
  std::int32_t owned = 0;
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    const bool ours = !slots_.is_free(slot) && slots_.owner(slot) != SlotPool::caller;
    owned += ours;
    require_invariant(!orphans_[slot.index()] || (!slots_.is_free(slot) && !ours && slots_.lock_count(slot) > 0),
                      structure, "an orphan slot is free, owned or not pinned");
  }
  require_invariant(owned == with_slots, structure, "the number of slots with an owner is wrong");
  for (const auto& [hash, block] : hash_to_block_)
    require_invariant(entries_[block.index()].hash == hash, structure, "the map names a block with another hash");
}

}  // namespace stateport
