// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/slot_allocator.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/tenant_ledger.hpp"
#include "evict/victim_order.hpp"
#include "hash/block_hash_index.hpp"
#include "slots/state_forest.hpp"

#include <algorithm>
#include <cmath>
#include <string>
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
  /// The source of a VictimOrder of blocks with slots.
  struct Candidates {
    const Books& books;
    bool spare_batch = false;  ///< the blocks of the batch keep their slots
    [[nodiscard]] bool eligible(std::uint32_t index) const;
    [[nodiscard]] VictimKey key(std::uint32_t index) const { return books.forest->key(index); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const {
      return static_cast<std::uint64_t>(books.blocks.last_use_tick(block_of(index)));
    }
    [[nodiscard]] detail::TenantId tenant(std::uint32_t index) const { return books.options.block_owners->of(index); }
    [[nodiscard]] std::int64_t bytes(std::uint32_t) const { return books.options.slot_owners->victim_bytes(); }
  };
  [[nodiscard]] static BlockId block_of(std::uint32_t index) noexcept {
    return BlockId{static_cast<std::int32_t>(index)};
  }
  [[nodiscard]] static std::uint32_t index_of(BlockId block) noexcept {
    return static_cast<std::uint32_t>(block.value());
  }
  [[nodiscard]] Candidates candidates() const noexcept { return {*this}; }
  [[nodiscard]] bool evictable(BlockId block) const;
  void offer(BlockId block);
  /// The key of this candidate, if it is one, may have become smaller.
  void rank_again(std::uint32_t index) {
    if (index != StateForest::none) victims.rank_again(candidates(), index);
  }
  void mark_batch(std::span<const BlockId> batch_blocks);
  [[nodiscard]] bool can_choose(std::size_t count);
  void choose_victims(std::size_t count);
  void prefetch_victims() const noexcept;
  [[nodiscard]] SlotVictim victim(BlockId block) const;
  void take_from_chosen();
  void assign_slots();
  void forget_hash(SlotId slot) noexcept;
  void detach(BlockId block);
  void release(SlotId slot) {
    slots.release(slot);
    if (options.slot_owners != nullptr) options.slot_owners->give(slot.index());
  }

  SlotPool& slots;
  BlockDirectory& blocks;
  SlotAllocatorOptions options;
  Table<SlotId> slot_of;  ///< by block; negative ones differ
  Table<Held> held;       ///< by slot
  detail::BlockHashIndex<SlotId> hash_to_slot;
  VictimOrder<> victims;                ///< every evictable block with a slot; others are dropped when seen
  std::unique_ptr<StateForest> forest;  ///< if the policy asks for more than the last use
  double now_s = 0;
  std::int64_t evictions = 0;
  std::uint32_t batch = 0;
  // Scratch of one call.
  std::vector<Fresh> fresh;
  std::vector<BlockId> chosen;
  std::vector<std::uint32_t> foreseen;
  std::vector<SlotId> given;
};

namespace {

VictimTraits traits_of(const EvictionPolicy* policy) noexcept {
  return policy == nullptr ? VictimTraits{.by_last_use = true} : policy->traits();
}

}  // namespace

SlotAllocator::Books::Books(SlotPool& pool, BlockDirectory& directory, const SlotAllocatorOptions& allocator_options)
    : slots(pool),
      blocks(directory),
      options(allocator_options),
      slot_of(static_cast<std::size_t>(directory.block_count())),
      held(static_cast<std::size_t>(pool.capacity_slots())),
      hash_to_slot(held.size()),
      victims(traits_of(options.eviction.get()),
              options.block_owners != nullptr ? &options.block_owners->ledger() : nullptr) {
  if (options.eviction && (options.eviction->learning() || victims.strategy() != VictimStrategy::list))
    forest =
        std::make_unique<StateForest>(options.eviction, blocks, held.size(), options.kv_follows, options.block_owners);
  victims.reserve(slot_of.size());
  fresh.reserve(slot_of.size());
  chosen.reserve(held.size());
  foreseen.reserve(held.size());
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

bool SlotAllocator::Books::evictable(BlockId block) const {
  const SlotId slot = slot_of[block.index()];
  return slot.valid() && blocks.ref_count(block) == 0 && slots.lock_count(slot) == 0;
}

bool SlotAllocator::Books::Candidates::eligible(std::uint32_t index) const {
  const SlotId slot = books.slot_of[index];
  return slot.valid() && !(spare_batch && books.held[slot.index()].batch == books.batch) &&
         books.evictable(block_of(index));
}

void SlotAllocator::Books::offer(BlockId block) {
  if (evictable(block)) victims.offer(candidates(), index_of(block));
}

std::size_t SlotAllocator::peek_victims(std::span<SlotVictim> out) {
  Books& books = *books_;
  books.foreseen.resize(std::min(out.size(), books.held.size()));
  const std::size_t found = books.victims.peek(books.candidates(), books.foreseen);
  for (std::size_t at = 0; at < found; ++at) out[at] = books.victim(Books::block_of(books.foreseen[at]));
  return found;
}

SlotDemand SlotAllocator::try_allocate(std::span<const BlockId> blocks, std::span<SlotId> slots) {
  require(slots.size() == blocks.size(), "slots", slots.size(), "must be as many as blocks");
  require_blocks(blocks);
  books_->mark_batch(blocks);
  const auto required = books_->fresh.size();
  const auto free = static_cast<std::size_t>(slots_.free_slots());
  books_->chosen.clear();
  if (required > free && books_->can_choose(required - free)) books_->choose_victims(required - free);
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

bool SlotAllocator::evict_slot(SlotId slot) {
  require(slot.valid() && slot.value() < slots_.capacity_slots(), "slot", slot, "is out of range");
  if (slots_.is_free(slot) || slots_.owner(slot) == SlotPool::caller) return false;
  if (slots_.lock_count(slot) > 0) return false;
  const BlockId block{slots_.owner(slot)};
  books_->victims.erase(books_->candidates(), Books::index_of(block));
  if (books_->forest) books_->rank_again(books_->forest->lose(block));
  books_->chosen.assign(1, block);
  books_->given.clear();
  books_->take_from_chosen();
  slots_.release(books_->given);
  return true;
}

/// Marks the batch: the slots that its blocks have with a new number, blocks without one as pending, each once in
/// fresh.
void SlotAllocator::Books::mark_batch(std::span<const BlockId> batch_blocks) {
  fresh.clear();
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

/// A policy cannot undo its observation of a first victim, so all victims are looked for beforehand. If there are fewer
/// than `count`, `chosen` holds them.
bool SlotAllocator::Books::can_choose(std::size_t count) {
  if (!forest || count == 1) return true;
  foreseen.resize(std::min(count, held.size()));
  const std::size_t found = victims.peek(Candidates{*this, true}, foreseen);
  if (found == count) return true;
  for (const std::uint32_t index : std::span(foreseen).first(found)) chosen.push_back(block_of(index));
  return false;
}

/// Chooses up to `count` victims, in order of eviction. They keep their slots for now, but the policy observes each
/// eviction at once, so that it ranks the next one as if those before it were gone.
void SlotAllocator::Books::choose_victims(std::size_t count) {
  const Candidates spared{*this, true};
  while (chosen.size() < count) {
    prefetch_victims();
    const auto victim = victims.next(spared);
    if (!victim) return;
    victims.erase(spared, *victim);
    chosen.push_back(block_of(*victim));
    if (forest) rank_again(forest->evict(chosen.back()));
  }
}

/// Old blocks are in no cache any more: their entries are fetched early, the memory that the entries name a little
/// later.
void SlotAllocator::Books::prefetch_victims() const noexcept {
  if (const auto later = victims.upcoming(2 * detail::prefetch_distance)) {
    detail::prefetch(&slot_of[*later]);
    blocks.prefetch(block_of(*later));
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

/// Appends the slots of the chosen blocks to `given`; the blocks have lost them.
void SlotAllocator::Books::take_from_chosen() {
  detail::for_each_prefetched(
      chosen.size(), [&](std::size_t i) { hash_to_slot.prefetch(held[slot_of[chosen[i].index()].index()].hash); },
      [&](std::size_t i) {
        const SlotId slot = slot_of[chosen[i].index()];
        given.push_back(slot);
        if (options.slot_owners != nullptr) options.slot_owners->give(slot.index());
        if (options.on_victim) options.on_victim(victim(chosen[i]));
        slots.set_tag(slot, {});
        forget_hash(slot);
        slot_of[chosen[i].index()] = lost_slot;
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
    victims.prefetch(index_of(block));
    slots.set_owner(given[i], block.value());
    if (options.slot_owners != nullptr) options.slot_owners->take(given[i].index());
    if (forest) forest->store(block);
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
  victims.erase(candidates(), index_of(block));
  if (forest) rank_again(forest->lose(block));
  slot_of[block.index()] = SlotId{};
  if (slots.lock_count(slot) == 0) return release(slot);
  slots.set_tag(slot, {});
  slots.set_owner(slot, SlotPool::caller);
  held[slot.index()].orphan = true;
}

void SlotAllocator::move_state(BlockId from, BlockId to) {
  const SlotId slot = with_slot(from);
  require(!has_state(to), "to", to, "has a state");
  books_->forget_hash(slot);
  books_->victims.erase(books_->candidates(), Books::index_of(from));
  if (books_->forest) books_->rank_again(books_->forest->lose(from));
  slot_of_[from.index()] = SlotId{};
  slot_of_[to.index()] = slot;
  slots_.set_owner(slot, to.value());
  if (books_->forest) books_->forest->store(to);
  books_->offer(to);
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
    if (books_->forest) books_->forest->forget(block);
  }
}

void SlotAllocator::on_blocks_unreferenced(std::span<const BlockId> blocks) {
  require_blocks(blocks);
  // The directory says that their count is 0; the slot of a pinned state is passed over when its turn comes.
  for (const BlockId block : blocks)
    if (slot_of_[block.index()].valid()) books_->victims.offer(books_->candidates(), Books::index_of(block));
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
  books_->victims.prefetch(Books::index_of(block));  // its use will end with an offer
  return FoundState{0, block, slot};
}

std::optional<FoundState> SlotAllocator::find_longest_state(std::span<const BlockHash> hashes) const {
  for (std::size_t index = hashes.size(); index-- > 0;)
    if (const SlotId slot = books_->hash_to_slot.find(hashes[index], books_->hash_of()); slot.valid())
      return FoundState{index, BlockId{slots_.owner(slot)}, slot};
  return std::nullopt;
}

PromptPast SlotAllocator::note_served(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s) {
  check_hint(prompt.hint);
  require(prompt.usable_blocks >= 0, "usable_blocks", prompt.usable_blocks, "must not be negative");
  require(prompt.matched_blocks >= 0, "matched_blocks", prompt.matched_blocks, "must not be negative");
  require(prompt.hit_blocks >= 0, "hit_blocks", prompt.hit_blocks, "must not be negative");
  require(prompt.tokens >= 0, "tokens", prompt.tokens, "must not be negative");
  require(std::isfinite(now_s) && now_s >= books_->now_s, "now_s", now_s,
          "must be finite and not before the last time");
  const double looked_up_s = prompt.past.looked_up_s.value_or(now_s);
  require(looked_up_s <= now_s, "past.looked_up_s", looked_up_s, "must be a time of the clock, up to now");
  books_->now_s = now_s;
  if (!books_->forest) return {};
  const auto find = [this](BlockHash hash) -> std::optional<StateForest::Found> {
    const SlotId slot = books_->hash_to_slot.find(hash, books_->hash_of());
    if (!slot.valid()) return std::nullopt;
    return StateForest::Found{BlockId{slots_.owner(slot)}, slots_.tag(slot).token_count};
  };
  const PromptPast past = books_->forest->serve(hashes, prompt, now_s, find);
  for (const std::uint32_t index : books_->forest->served()) books_->rank_again(index);
  return past;
}

void SlotAllocator::withdraw(BlockId block) {
  const SlotId slot = with_slot(block);
  slots_.set_tag(slot, {});
  books_->forget_hash(slot);
}

SlotCopy SlotAllocator::store_from(BlockId block, SlotId source) const {
  require(source.valid(), "source", source, "must not be negative");
  return SlotCopy::whole(source, with_slot(block));
}

void SlotAllocator::store_from_live(std::span<const SlotId> slots, std::span<const SlotId> live_slots,
                                    std::span<SlotCopy> copies) const {
  require(live_slots.size() == slots.size(), "live_slots", live_slots.size(), "must be as many as slots");
  require(copies.size() == slots.size(), "copies", copies.size(), "must be as many as slots");
  for (const SlotId slot : slots) require(slots_.owner(slot) != SlotPool::caller, "slot", slot, "belongs to no block");
  for (const SlotId live : live_slots) require(live.valid(), "live_slot", live, "must not be negative");
  for (std::size_t i = 0; i < slots.size(); ++i) copies[i] = SlotCopy::whole(live_slots[i], slots[i]);
}

RestorePlan SlotAllocator::restore_to_live(BlockId block, SlotId live_slot, const StateTag& wanted) const {
  require(live_slot.valid(), "live_slot", live_slot, "must not be negative");
  const SlotId slot = slot_of(block);
  if (!slot.valid()) return {};
  const TagCheck check = check_tag(slots_.tag(slot), wanted);
  if (check != TagCheck::match) return {.check = check, .copy = {}};
  return {.check = check, .copy = SlotCopy::whole(slot, live_slot)};
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
    books_->release(slot);
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
  if (books_->options.slot_owners != nullptr) books_->options.slot_owners->reset();
  books_->batch = 0;
  books_->hash_to_slot.clear();
  books_->victims.clear();
  if (books_->forest) books_->forest->clear();
}

void SlotAllocator::check_invariants() const {
  constexpr const char* structure = "SlotAllocator";
  slots_.check_invariants();
  books_->victims.check_invariants(books_->candidates());
  if (books_->forest) books_->forest->check_invariants(static_cast<std::size_t>(books_->blocks.block_count()));
  books_->hash_to_slot.check_invariants(books_->hash_of());
  std::int32_t with_slots = 0;
  for (std::size_t index = 0; index < books_->slot_of.size(); ++index) {
    const SlotId slot = slot_of_[index];
    const BlockId block{static_cast<std::int32_t>(index)};
    require_invariant(slot.valid() || slot == SlotId{} || slot == lost_slot, structure,
                      "a block still waits for a slot");
    const auto candidate = static_cast<std::uint32_t>(index);
    const bool offered = books_->victims.contains(books_->candidates(), candidate);
    require_invariant(!books_->forest || books_->forest->has_state(candidate) == slot.valid(), structure,
                      "the policy has other states");
    require_invariant(slot.valid() || !offered, structure, "a block without a state is offered");
    if (!slot.valid()) continue;
    ++with_slots;
    require_invariant(slots_.owner(slot) == block.value(), structure, "a slot has another owner");
    require_invariant(!books_->evictable(block) || offered, structure, "an evictable block is not offered");
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
