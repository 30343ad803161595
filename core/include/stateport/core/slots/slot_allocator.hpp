// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/block_directory.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/pool/slot_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace stateport {
namespace detail {
class TenantOwners;
}

/// A state that a SlotAllocator evicts.
struct SlotVictim {
  BlockId block;   ///< keeps its content and its hash
  SlotId slot;     ///< holds the state until it is written again
  StateTag tag;    ///< of the state in `slot`: its tokens and their hash
  BlockHash hash;  ///< by which the state was registered; not positive if it was not
};

struct SlotAllocatorOptions {
  /// Which states are evicted: see make_eviction_policy(). Null: lru, by (last-use tick, block id). A learning policy
  /// belongs to one allocator. An order whose keys shrink with each use (mru) is refused.
  std::shared_ptr<EvictionPolicy> eviction;
  /// Called for every victim, in order of eviction, before its slot is free or given to another block. A copy that the
  /// callback enqueues on the stream that writes the slot later still reads the state. Must not throw or call the
  /// allocator.
  std::function<void(const SlotVictim&)> on_victim;
  /// The caller drops the KV that only an evicted state needed, as one memory for both wants: hix then counts it
  /// with the state.
  bool kv_follows = false;
  /// Set by a RequestCache with tenant_quotas alone, both or none: whose the blocks are, and whose the slots, which the
  /// allocator keeps. Victims are then those that the asking tenant may have evicted; each call asks for one slot.
  const detail::TenantOwners* block_owners = nullptr;
  detail::TenantOwners* slot_owners = nullptr;
};

/// The slots that a batch of blocks needs, and those that can be had: `available` slots are free or can be evicted.
struct SlotDemand {
  std::int64_t required = 0;
  std::int64_t available = 0;
  [[nodiscard]] bool met() const noexcept { return required <= available; }
};

/// A state found by hash: `index` is the position of the hash, `slot` belongs to `block`.
struct FoundState {
  std::size_t index = 0;
  BlockId block;
  SlotId slot;
};

/// A restore that was allowed (check == match) or refused; refused ones copy nothing.
struct RestorePlan {
  TagCheck check = TagCheck::empty;
  SlotCopy copy;
  [[nodiscard]] explicit operator bool() const noexcept { return check == TagCheck::match; }
};

/// Finds checkpoints by block hash: which KV block has a state, in which slot; after Megatron-LM's MambaSlotAllocator,
/// with safe rules where that one leaves stale entries.
///
///     none ── allocate ──► has a slot ── register_hashes ──► has a slot, found by hash
///       ▲                       │                                   │
///       └── evicted for another block, invalidated, or its block deregistered ──┘
///
/// A block's slot is evicted only at ref 0 and when not pinned; KV block and KV hash stay. A hash entry is removed with
/// the slot, if it names that block. The directory calls the allocator (see BlockListener) when blocks become
/// unreferenced or lose their content, so that choosing victims never scans.
///
/// Costs: O(1) per block of a call, plus O(log slots) per eviction. No allocation after construction and warm-up. Not
/// thread-safe. Every function that takes blocks throws InvalidArgument for one out of range, and then has changed
/// nothing.
///
/// With an eviction policy a victim costs O(log slots), or O(draws) keys. Several victims of one call are ranked one
/// after the other, each as if those before it were gone; that costs about twice as much for each.
class SlotAllocator final : public BlockListener {
 public:
  /// Takes slots from `slots` for blocks of `blocks`, with the block id as the owner. The engine may hold other slots
  /// of that pool, but must not use block ids as owners. Both must outlive the allocator.
  SlotAllocator(SlotPool& slots, BlockDirectory& blocks, const SlotAllocatorOptions& options = {});
  ~SlotAllocator();
  SlotAllocator(const SlotAllocator&) = delete;
  SlotAllocator& operator=(const SlotAllocator&) = delete;

  /// Gives every block a slot: slots[i] is that of blocks[i]. Blocks that have one keep it; others take, in order of
  /// first occurrence, the top segment of the free stack in stored order, then the slots of victims, never of a block
  /// in this batch. New slots have an empty tag. Nothing changes unless the demand is met.
  [[nodiscard]] SlotDemand try_allocate(std::span<const BlockId> blocks, std::span<SlotId> slots);
  /// The same; throws SlotCapacityError if the demand is not met.
  void allocate(std::span<const BlockId> blocks, std::span<SlotId> slots);

  /// Evicts `states` states; their slots are free afterwards. For a caller with one memory for KV and states. Returns
  /// how many were evicted: fewer if all that are left are referenced or pinned. Throws InvalidArgument for states < 0.
  std::int64_t evict(std::int64_t states);
  /// Evicts the state in this slot for its place, not for its worth: the policy learns nothing from it. The block may
  /// be referenced. False: the slot is free, the caller's, or pinned. Throws InvalidArgument for a slot out of range.
  bool evict_slot(SlotId slot);

  /// SlotId{} if the block has none.
  [[nodiscard]] SlotId slot_of(BlockId block) const {
    require_block(block);
    const SlotId slot = slot_of_[block.index()];
    return slot.valid() ? slot : SlotId{};
  }
  [[nodiscard]] bool has_state(BlockId block) const { return slot_of(block).valid(); }
  /// True if the block had a state, lost it to another block or to evict(), and has kept its content since.
  [[nodiscard]] bool was_evicted(BlockId block) const {
    require_block(block);
    return slot_of_[block.index()] == lost_slot;
  }

  /// Gives slots back to the free stack, in this order; blocks without one and duplicates are passed over.
  void invalidate(std::span<const BlockId> blocks);
  void invalidate(BlockId block) { invalidate({&block, 1}); }

  /// Moves the slot of `from`, with its tag and its pins, to `to`, another block with the same content. The state has
  /// to be registered again. Also throws for a block `from` without a slot and a block `to` with one.
  void move_state(BlockId from, BlockId to);

  /// Makes states findable. hashes[i] <= 0 is skipped; a later block takes over a hash. Also throws for lists of
  /// different lengths and a block without a slot.
  void register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes);
  /// BlockId{} if no state has it.
  [[nodiscard]] BlockId find(BlockHash hash) const;
  /// The last of `hashes` that has a state, searched right to left.
  [[nodiscard]] std::optional<FoundState> find_longest_state(std::span<const BlockHash> hashes) const;
  [[nodiscard]] std::size_t registered_count() const noexcept;
  /// The hash that the state of a block was registered with last; not positive if it never was. Another block may have
  /// taken the hash over. Also throws for a block without a slot.
  [[nodiscard]] BlockHash registered_hash(BlockId block) const;
  /// The state that has exactly this tag and is registered, found by `hash`; `index` is 0.
  [[nodiscard]] std::optional<FoundState> find_tagged(BlockHash hash, const StateTag& wanted) const;
  /// A hint that the hash will soon be looked up or registered.
  void prefetch(BlockHash hash) const noexcept;

  /// Reports a request to the eviction policy: which positions of its prompt have a state now, how long each prefix is,
  /// and which shorter one a request would fall back to. Call it once the request's states are tagged and registered.
  /// `hashes` are those of the full blocks of the prompt; those after the first one <= 0 do not count. Of `prompt`, the
  /// usable, matched and hit blocks, `tokens`, `past` and the hint are read. The request ends at the state of the last
  /// block, unless it gets longer (`tokens`). The answer is the `past` of the next call about the same request, for
  /// example with more blocks at its end: a request that has a past counts no lookup and no use again. `now_s` is the
  /// caller's clock in seconds. A state that no request has reported has rank 0 for gdsf and hix: those go first, least
  /// recently used first, so an engine that never calls this has LRU. Throws InvalidArgument for a clock that goes back
  /// or is not finite, a past after it, a negative number of blocks or tokens, and a hint that check_hint refuses.
  /// O(hashes).
  PromptPast note_served(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s);

  /// The content of the slot of a block. Both also throw for a block without a slot.
  void set_tag(BlockId block, const StateTag& tag) { slots_.set_tag(with_slot(block), tag); }
  [[nodiscard]] const StateTag& tag(BlockId block) const { return slots_.tag(with_slot(block)); }
  /// Hides a state before its slot is written again: removes hash entry and tag, the block keeps the slot. Also throws
  /// for a block without a slot.
  void withdraw(BlockId block);

  /// Copies into the slot of `block`, from a slot of another store. Also throws for a block without a slot.
  [[nodiscard]] SlotCopy store_from(BlockId block, SlotId source) const;
  /// copies[i] brings the live state live_slots[i] into slots[i]. Throws for lists of different lengths and a slot
  /// that no block has.
  void store_from_live(std::span<const SlotId> slots, std::span<const SlotId> live_slots,
                       std::span<SlotCopy> copies) const;
  /// Brings the state of a block into a live slot if it is exactly the wanted one.
  [[nodiscard]] RestorePlan restore_to_live(BlockId block, SlotId live_slot, const StateTag& wanted) const;

  /// Forbids eviction while a copy from or into the slot is in flight. Also throws for a block without a slot. If the
  /// block loses its content meanwhile, the slot becomes free with the last unpin.
  [[nodiscard]] SlotId pin(BlockId block);
  /// Throws for a slot that is not pinned.
  void unpin(SlotId slot);

  /// Also a public operation for engines without listeners. Slots of the blocks are free afterwards, registered or not.
  void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;
  void on_blocks_unreferenced(std::span<const BlockId> blocks) override;

  /// Writes the states that would be evicted next, in order, and returns how many there are, at most out.size().
  /// Changes no later answer. The ranks are those of now: a state that the policy would rank otherwise once the victims
  /// before it are gone is not foreseen. Costs as much as these evictions.
  [[nodiscard]] std::size_t peek_victims(std::span<SlotVictim> out);
  /// States evicted for other blocks or by evict(), since construction.
  [[nodiscard]] std::int64_t evictions() const noexcept;
  [[nodiscard]] const SlotPool& slots() const noexcept { return slots_; }
  [[nodiscard]] const BlockDirectory& blocks() const noexcept { return blocks_; }

  /// No block has a slot; pins are gone. A pool without other users is as new.
  void reset();
  /// Throws std::logic_error naming the first broken invariant. O(slots + blocks).
  void check_invariants() const;

 private:
  static constexpr SlotId lost_slot{-2};  ///< the state was evicted, the content stayed
  struct Books;

  void require_block(BlockId block) const {
    require(block.valid() && block.value() < block_count_, "block", block, "is out of range");
  }
  void require_blocks(std::span<const BlockId> blocks) const {
    for (const BlockId block : blocks) require_block(block);
  }
  [[nodiscard]] SlotId with_slot(BlockId block) const {
    require_block(block);
    const SlotId slot = slot_of_[block.index()];
    require(slot.valid(), "block", block, "has no state");
    return slot;
  }

  SlotPool& slots_;
  BlockDirectory& blocks_;
  std::unique_ptr<Books> books_;  ///< the tables, the index of hashes and the order of eviction
  SlotId* slot_of_;               ///< a table in `books_`, by block; negative ones differ
  std::int32_t block_count_;
};

}  // namespace stateport
