// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/slot_allocator.hpp>

#include <stateport/core/containers/prefetch.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "slots/ranked_states.hpp"

namespace stateport {

SlotAllocator::SlotAllocator(SlotPool& slots, BlockDirectory& blocks, const SlotAllocatorOptions& options)
    : slots_(slots),
      blocks_(blocks),
      options_(options),
      slot_of_(static_cast<std::size_t>(blocks.block_count())),
      held_(static_cast<std::size_t>(slots.capacity_slots())),
      hash_to_slot_(held_.size()) {
  if (options.eviction)
    ranked_ = std::make_unique<RankedStates>(options.eviction, blocks, held_.size());
  else
    victims_.reserve(slot_of_.size());
  fresh_.reserve(held_.size());
  chosen_.reserve(held_.size());
  given_.reserve(held_.size());
  blocks_.add_listener(*this);
}

SlotAllocator::~SlotAllocator() {
  blocks_.remove_listener(*this);
}

std::int64_t SlotAllocator::key_of(BlockId block) const {
  return options_.policy == BlockPolicy::lru ? blocks_.last_use_tick(block) : 0;
}

bool SlotAllocator::evictable(BlockId block) const {
  const SlotId slot = slot_of_[block.index()];
  return slot.valid() && blocks_.ref_count(block) == 0 && slots_.lock_count(slot) == 0;
}

void SlotAllocator::offer(BlockId block) {
  if (evictable(block)) add_victim(block);
}

void SlotAllocator::add_victim(BlockId block) {
  if (ranked_) return ranked_->offer(block);
  // An entry of an earlier time may carry a later tick: that of a pinned block was set back, for example.
  victims_.update(static_cast<std::uint32_t>(block.value()), key_of(block));
}

SlotDemand SlotAllocator::try_allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  require(slots.size() == blocks.size(), "slots", slots.size(), "must be as many as blocks");
  require_blocks(blocks);
  mark_batch(blocks);
  const auto required = fresh_.size();
  const auto free = static_cast<std::size_t>(slots_.free_slots());
  chosen_.clear();
  if (required > free) choose_victims(required - free);
  const SlotDemand demand{static_cast<std::int64_t>(required), static_cast<std::int64_t>(free + chosen_.size())};
  if (demand.met()) {
    assign_slots();
    for (std::size_t i = 0; i < blocks.size(); ++i) slots[i] = slot_of_[blocks[i].index()];
  } else {
    for (const Fresh& fresh : fresh_) slot_of_[fresh.block.index()] = fresh.before;
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

/// Marks the batch: the slots that its blocks have with a new number, blocks without one as pending, each once in
/// fresh_.
void SlotAllocator::mark_batch(std::span<const BlockId> blocks) {
  fresh_.clear();
  fresh_.reserve(std::min(blocks.size(), slot_of_.size()));
  if (++batch_ == 0) {
    for (Held& held : held_) held.batch = 0;
    batch_ = 1;
  }
  for (const BlockId block : blocks) {
    SlotId& slot = slot_of_[block.index()];
    if (slot.valid()) {
      held_[slot.index()].batch = batch_;
    } else if (slot != pending_slot) {
      fresh_.push_back({block, slot});
      slot = pending_slot;
    }
  }
}

/// Takes up to `count` victims off the heap into chosen_, in order of eviction. They keep their slots for now.
void SlotAllocator::choose_victims(std::size_t count) {
  const auto eligible = [this](std::uint32_t index) {
    const SlotId slot = slot_of_[index];
    return slot.valid() && held_[slot.index()].batch != batch_ && evictable(BlockId{static_cast<std::int32_t>(index)});
  };
  const auto key = [this](std::uint32_t index) { return key_of(BlockId{static_cast<std::int32_t>(index)}); };
  while (ranked_ && chosen_.size() < count) {
    const auto victim = ranked_->top(eligible);
    if (!victim) return;
    chosen_.push_back(BlockId{static_cast<std::int32_t>(*victim)});
    ranked_->withdraw(chosen_.back());
  }
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
    detail::prefetch(&slot_of_[*later]);
    blocks_.prefetch(BlockId{static_cast<std::int32_t>(*later)});
  }
  if (const auto soon = victims_.upcoming(detail::prefetch_distance)) {
    if (const SlotId slot = slot_of_[*soon]; slot.valid()) {
      detail::prefetch(&held_[slot.index()]);
      slots_.prefetch(slot);
    }
  }
}

void SlotAllocator::assign_slots() {
  given_.resize(fresh_.size() - chosen_.size());
  const bool enough = slots_.allocate(given_);
  STATEPORT_ASSERT(enough);
  static_cast<void>(enough);
  detail::for_each_prefetched(
      chosen_.size(), [&](std::size_t i) { prefetch(held_[slot_of_[chosen_[i].index()].index()].hash); },
      [&](std::size_t i) {
        const SlotId slot = slot_of_[chosen_[i].index()];
        given_.push_back(slot);
        slots_.set_tag(slot, {});
        forget_hash(slot);
        slot_of_[chosen_[i].index()] = lost_slot;
        if (ranked_) ranked_->evict(chosen_[i]);
      });
  evictions_ += static_cast<std::int64_t>(chosen_.size());
  for (std::size_t i = 0; i < fresh_.size(); ++i) {
    const BlockId block = fresh_[i].block;
    slot_of_[block.index()] = given_[i];
    detail::prefetch(&held_[given_[i].index()]);  // for the hash and the offer that follow
    if (!ranked_) victims_.prefetch(static_cast<std::uint32_t>(block.value()));
    slots_.set_owner(given_[i], block.value());
    if (ranked_) ranked_->store(block);
    offer(block);
  }
}

/// The entry of a hash belongs to the block that registered it last: only that block takes it away.
void SlotAllocator::forget_hash(SlotId slot) noexcept {
  BlockHash& hash = held_[slot.index()].hash;
  if (hash <= 0) return;
  hash_to_slot_.erase(hash, slot);
  hash = hash_not_computed;
}

void SlotAllocator::detach(BlockId block) {
  const SlotId slot = slot_of_[block.index()];
  if (!slot.valid()) return;
  forget_hash(slot);
  if (ranked_)
    ranked_->lose(block);
  else
    victims_.erase(static_cast<std::uint32_t>(block.value()));
  slot_of_[block.index()] = SlotId{};
  if (slots_.lock_count(slot) == 0) return slots_.release(slot);
  slots_.set_tag(slot, {});
  slots_.set_owner(slot, SlotPool::caller);
  held_[slot.index()].orphan = true;
}

void SlotAllocator::invalidate(std::span<const BlockId> blocks) {
  require_blocks(blocks);
  for (const BlockId block : blocks) detach(block);
}

void SlotAllocator::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  require(hashes.size() == blocks.size(), "hashes", hashes.size(), "must be as many as blocks");
  require_blocks(blocks);
  for (const BlockId block : blocks) {
    if (slot_of_[block.index()].valid()) detach(block);
    slot_of_[block.index()] = SlotId{};
    if (ranked_) ranked_->forget(block);
  }
}

void SlotAllocator::on_blocks_unreferenced(std::span<const BlockId> blocks) {
  require_blocks(blocks);
  // The directory says that their count is 0; the slot of a pinned state is passed over when its turn comes.
  for (const BlockId block : blocks)
    if (slot_of_[block.index()].valid()) add_victim(block);
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
        if (hashes[i] > 0) detail::prefetch(&held_[slot_of_[blocks[i].index()].index()]);
      },
      [&](std::size_t i) {
        if (hashes[i] <= 0) return;
        const SlotId slot = slot_of_[blocks[i].index()];
        if (held_[slot.index()].hash != hashes[i]) forget_hash(slot);
        held_[slot.index()].hash = hashes[i];
        hash_to_slot_.assign(hashes[i], slot, hash_of());
      });
}

BlockId SlotAllocator::find(BlockHash hash) const {
  const SlotId slot = hash_to_slot_.find(hash, hash_of());
  return slot.valid() ? BlockId{slots_.owner(slot)} : BlockId{};
}

BlockHash SlotAllocator::registered_hash(BlockId block) const {
  return held_[with_slot(block).index()].hash;
}

std::optional<FoundState> SlotAllocator::find_tagged(BlockHash hash, const StateTag& wanted) const {
  // A tag says more than the hash that finds it: one that matches spares the look at the hash.
  SlotId slot = hash_to_slot_.guess(hash);
  if (slot.valid() && check_tag(slots_.tag(slot), wanted) != TagCheck::match) {
    slot = hash_to_slot_.find(hash, hash_of());
    if (slot.valid() && check_tag(slots_.tag(slot), wanted) != TagCheck::match) return std::nullopt;
  }
  if (!slot.valid()) return std::nullopt;
  const BlockId block{slots_.owner(slot)};
  if (!ranked_) victims_.prefetch(static_cast<std::uint32_t>(block.value()));  // its use will end with an offer
  return FoundState{0, block, slot};
}

std::optional<FoundState> SlotAllocator::find_longest_state(std::span<const BlockHash> hashes) const {
  for (std::size_t index = hashes.size(); index-- > 0;)
    if (const SlotId slot = hash_to_slot_.find(hashes[index], hash_of()); slot.valid())
      return FoundState{index, BlockId{slots_.owner(slot)}, slot};
  return std::nullopt;
}

void SlotAllocator::note_served(const ServedPrompt& prompt) {
  check_hint(prompt.hint);
  require(prompt.usable_blocks >= 0, "usable_blocks", prompt.usable_blocks, "must not be negative");
  require(prompt.matched_blocks >= 0, "matched_blocks", prompt.matched_blocks, "must not be negative");
  require(prompt.hit_blocks >= 0, "hit_blocks", prompt.hit_blocks, "must not be negative");
  if (!ranked_) return;
  if (!(std::isfinite(prompt.now_s) && prompt.now_s >= ranked_->now_s()))
    require(false, "now_s", std::string_view(std::to_string(prompt.now_s)),
            "must be finite and not before the last time");
  ranked_->serve(prompt, [this](BlockHash hash) -> std::optional<RankedStates::Found> {
    const SlotId slot = hash_to_slot_.find(hash, hash_of());
    if (!slot.valid()) return std::nullopt;
    return RankedStates::Found{BlockId{slots_.owner(slot)}, slots_.tag(slot).token_count};
  });
}

void SlotAllocator::withdraw(BlockId block) {
  const SlotId slot = with_slot(block);
  slots_.set_tag(slot, {});
  forget_hash(slot);
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
  if (held_[slot.index()].orphan) {
    held_[slot.index()].orphan = false;
    slots_.release(slot);
  } else if (slots_.owner(slot) != SlotPool::caller) {
    offer(BlockId{slots_.owner(slot)});
  }
}

void SlotAllocator::reset() {
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    if (slots_.is_free(slot) || (slots_.owner(slot) == SlotPool::caller && !held_[slot.index()].orphan)) continue;
    while (slots_.lock_count(slot) > 0) slots_.unlock(slot);
    slots_.release(slot);
  }
  if (slots_.free_slots() == slots_.capacity_slots()) slots_.reset();
  std::ranges::fill(held_, Held{});
  std::ranges::fill(slot_of_, SlotId{});
  batch_ = 0;
  hash_to_slot_.clear();
  if (ranked_)
    ranked_->clear();
  else
    victims_.clear();
}

void SlotAllocator::check_invariants() const {
  constexpr const char* structure = "SlotAllocator";
  slots_.check_invariants();
  if (ranked_)
    ranked_->check_invariants();
  else
    victims_.check_invariants();
  hash_to_slot_.check_invariants(hash_of());
  std::int32_t with_slots = 0;
  for (std::size_t index = 0; index < slot_of_.size(); ++index) {
    const SlotId slot = slot_of_[index];
    const BlockId block{static_cast<std::int32_t>(index)};
    require_invariant(slot.valid() || slot == SlotId{} || slot == lost_slot, structure,
                      "a block still waits for a slot");
    if (!slot.valid()) continue;
    ++with_slots;
    require_invariant(slots_.owner(slot) == block.value(), structure, "a slot has another owner");
    const auto candidate = static_cast<std::uint32_t>(index);
    require_invariant(!evictable(block) || (ranked_ ? ranked_->contains(candidate) : victims_.contains(candidate)),
                      structure, "an evictable block is not offered");
  }
  std::int32_t owned = 0;
  std::size_t found = 0;
  for (std::int32_t index = 0; index < slots_.capacity_slots(); ++index) {
    const SlotId slot{index};
    const Held& held = held_[slot.index()];
    const bool ours = !slots_.is_free(slot) && slots_.owner(slot) != SlotPool::caller;
    owned += ours;
    found += held.hash > 0 && hash_to_slot_.find(held.hash, hash_of()) == slot;
    require_invariant(ours || held.hash <= 0, structure, "a slot without a block has a hash");
    require_invariant(!held.orphan || (!slots_.is_free(slot) && !ours && slots_.lock_count(slot) > 0), structure,
                      "an orphan slot is free, owned or not pinned");
  }
  require_invariant(owned == with_slots, structure, "the number of slots with an owner is wrong");
  require_invariant(found == hash_to_slot_.size(), structure, "the index names a slot that it does not find");
}

}  // namespace stateport
