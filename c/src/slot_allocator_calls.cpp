// SPDX-License-Identifier: Apache-2.0
// Calls of a slot allocator: checkpoints found by block hash.
#include <stateport/c/slot_allocator.h>
#include <stateport/core/pool/block_pool.hpp>

#include "allocator_object.hpp"
#include "arguments.hpp"
#include "copies.hpp"
#include "eviction.hpp"
#include "guard.hpp"

#include <algorithm>
#include <utility>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(STATEPORT_BLOCK_LRU == static_cast<int>(UnreferencedBlocks::cached) &&
              STATEPORT_BLOCK_REF_ZERO == static_cast<int>(UnreferencedBlocks::dropped));

/// The arguments of a call on the blocks of an allocator.
struct Call {
  Held<AllocatorObject> held;
  explicit Call(stateport_slot_allocator* handle) : held(handle, "allocator") {}

  [[nodiscard]] AllocatorObject* operator->() const noexcept { return held.operator->(); }
  [[nodiscard]] std::span<const BlockId> blocks(const std::int32_t* data, std::size_t count) const {
    return read_ids(data, count, "blocks", held->named_blocks);
  }
};

StateTag from_c(const stateport_tag* tag, const char* argument) {
  const auto given = read_struct<stateport_tag>(tag, argument);
  return {given.token_count, {{given.prefix[0], given.prefix[1]}}, given.layout_fingerprint};
}

}  // namespace

stateport_status stateport_slot_allocator_create(const stateport_slot_allocator_options* options,
                                                 stateport_slot_allocator** out) {
  return guarded([&] {
    create(out, [&] {
      const auto given = read_struct<stateport_slot_allocator_options>(options, "options");
      const BlockPoolOptions blocks{.blocks = given.blocks,
                                    .unreferenced = enumerator(given.policy, UnreferencedBlocks::dropped, "policy")};
      const auto eviction = make_policy(given.eviction, "eviction");
      const auto owner =
          given.external_blocks != 0 ? AllocatorBlocks::Owner::engine : AllocatorBlocks::Owner::allocator;
      require(owner == AllocatorBlocks::Owner::allocator || given.policy == STATEPORT_BLOCK_LRU, "policy", given.policy,
              "is the engine's affair for external blocks: leave it 0");
      return std::make_shared<AllocatorObject>(owner, blocks, given.slots, eviction,
                                               SlotVictimFunction{given.on_victim, given.on_victim_context});
    });
  });
}

stateport_status stateport_slot_allocator_destroy(stateport_slot_allocator* allocator) {
  return guarded([&] { destroy<AllocatorObject>(allocator, "allocator"); });
}

stateport_status stateport_slot_allocator_describe(stateport_slot_allocator* allocator,
                                                   stateport_slot_allocator_info* out) {
  return guarded([&] {
    const Call call(allocator);
    const BlockPool* const own = call->blocks.own_or_null();
    const ExternalBlockPool* const engines = call->blocks.engines_or_null();
    Out(out, "out")
        .write({.free_blocks = own == nullptr ? 0 : own->free_blocks(),
                .cached_blocks = own == nullptr ? 0 : own->cached_blocks(),
                .free_slots = call->slots.free_slots(),
                .registered_states = static_cast<std::int32_t>(call->allocator.registered_count()),
                .evictions = call->allocator.evictions(),
                .external_blocks = engines == nullptr ? 0 : engines->registered_blocks()});
  });
}

stateport_status stateport_slot_allocator_allocate_blocks(stateport_slot_allocator* allocator, int32_t* out,
                                                          size_t count) {
  return guarded([&] {
    const Call call(allocator);
    BlockPool& blocks = call->blocks.own();
    const std::int64_t available = std::int64_t{blocks.free_blocks()} + blocks.cached_blocks();
    const auto room = array(out, count, "out");
    if (std::cmp_greater(count, available)) throw NoCapacity("blocks", static_cast<std::int64_t>(count), available);
    call->named_blocks.assign(room.size(), BlockId{});
    if (!blocks.allocate(call->named_blocks)) throw NoCapacity("blocks", static_cast<std::int64_t>(count), available);
    write_ids<BlockId>(call->named_blocks, out);
  });
}

stateport_status stateport_slot_allocator_retain_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                        size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->blocks.retain(call.blocks(blocks, count));
  });
}

stateport_status stateport_slot_allocator_release_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                         size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->blocks.release(call.blocks(blocks, count));
  });
}

stateport_status stateport_slot_allocator_register_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                          const int64_t* hashes, const int64_t* parents, size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->blocks.register_hashes(call.blocks(blocks, count), array(hashes, count, "hashes"),
                                 array(parents, parents == nullptr ? 0 : count, "parents"));
  });
}

stateport_status stateport_slot_allocator_deregister_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                            size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->blocks.engines().deregister(call.blocks(blocks, count));
  });
}

stateport_status stateport_slot_allocator_clear_blocks(stateport_slot_allocator* allocator) {
  return guarded([&] { Call(allocator)->blocks.engines().clear(); });
}

stateport_status stateport_slot_allocator_find_blocks(stateport_slot_allocator* allocator, const int64_t* hashes,
                                                      size_t count, int32_t* blocks, size_t* found) {
  return guarded([&] {
    const Call call(allocator);
    static_cast<void>(array(blocks, count, "blocks"));
    std::size_t& result = checked(found, "found");
    call->named_blocks.assign(array(hashes, count, "hashes").size(), BlockId{});
    result = call->blocks.directory().find_prefix({hashes, count}, call->named_blocks);
    write_ids<BlockId>(std::span(call->named_blocks).first(result), blocks);
  });
}

stateport_status stateport_slot_allocator_advance_tick(stateport_slot_allocator* allocator) {
  return guarded([&] { Call(allocator)->blocks.advance_tick(); });
}

stateport_status stateport_slot_allocator_allocate_slots(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                         size_t count, int32_t* slots) {
  return guarded([&] {
    const Call call(allocator);
    const auto named = call.blocks(blocks, count);
    call->given_slots.assign(array(slots, count, "slots").size(), SlotId{});
    call->allocator.allocate(named, call->given_slots);
    write_ids<SlotId>(call->given_slots, slots);
  });
}

stateport_status stateport_slot_allocator_evict(stateport_slot_allocator* allocator, int64_t states, int64_t* evicted) {
  return guarded([&] {
    const Call call(allocator);
    const std::int64_t done = call->allocator.evict(states);
    if (evicted != nullptr) *evicted = done;
  });
}

stateport_status stateport_slot_allocator_peek_victims(stateport_slot_allocator* allocator, stateport_slot_victim* out,
                                                       size_t capacity, size_t* count) {
  return guarded([&] {
    const Call call(allocator);
    const OutArray result(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    std::vector<SlotVictim> victims(std::min(capacity, static_cast<std::size_t>(call->slots.capacity_slots())));
    reported = call->allocator.peek_victims(victims);
    for (std::size_t i = 0; i < reported; ++i) result.write(i, to_c(victims[i]));
  });
}

stateport_status stateport_slot_allocator_slot_of(stateport_slot_allocator* allocator, int32_t block, int32_t* slot) {
  return guarded([&] {
    const Call call(allocator);
    checked(slot, "slot") = call->allocator.slot_of(BlockId{block}).value();
  });
}

stateport_status stateport_slot_allocator_set_tag(stateport_slot_allocator* allocator, int32_t block,
                                                  const stateport_tag* tag) {
  return guarded([&] { Call(allocator)->allocator.set_tag(BlockId{block}, from_c(tag, "tag")); });
}

stateport_status stateport_slot_allocator_register_states(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                          const int64_t* hashes, size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->allocator.register_hashes(call.blocks(blocks, count), array(hashes, count, "hashes"));
  });
}

stateport_status stateport_slot_allocator_note_served(stateport_slot_allocator* allocator,
                                                      const stateport_served_prompt* prompt) {
  return guarded([&] {
    const Call call(allocator);
    const auto given = read_struct<stateport_served_prompt>(prompt, "prompt");
    call->allocator.note_served(array(given.hashes, given.count, "hashes"),
                                {.usable_blocks = given.usable_blocks,
                                 .matched_blocks = given.matched_blocks,
                                 .hit_blocks = given.hit_blocks,
                                 .hint = read_hint(given.hint, "hint")},
                                given.now_s);
  });
}

stateport_status stateport_slot_allocator_find_state(stateport_slot_allocator* allocator, const int64_t* hashes,
                                                     size_t count, stateport_found_state* out) {
  return guarded([&] {
    const Call call(allocator);
    const Out result(out, "out");
    const auto found = call->allocator.find_longest_state(array(hashes, count, "hashes"));
    if (found)
      result.write({.index = static_cast<std::int64_t>(found->index),
                    .block = found->block.value(),
                    .slot = found->slot.value()});
    else
      result.write({.index = -1, .block = STATEPORT_NONE, .slot = STATEPORT_NONE});
  });
}

stateport_status stateport_slot_allocator_restore(stateport_slot_allocator* allocator, int32_t block, int32_t live_slot,
                                                  const stateport_tag* wanted, stateport_restore* out) {
  return guarded([&] {
    const Call call(allocator);
    const Out result(out, "out");
    const auto plan = call->allocator.restore_to_live(BlockId{block}, SlotId{live_slot}, from_c(wanted, "wanted"));
    result.write({.check = static_cast<std::int32_t>(plan.check), .copy = to_c(plan.copy)});
  });
}

stateport_status stateport_slot_allocator_withdraw(stateport_slot_allocator* allocator, int32_t block) {
  return guarded([&] { Call(allocator)->allocator.withdraw(BlockId{block}); });
}

stateport_status stateport_slot_allocator_invalidate(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                     size_t count) {
  return guarded([&] {
    const Call call(allocator);
    call->allocator.invalidate(call.blocks(blocks, count));
  });
}

stateport_status stateport_slot_allocator_pin(stateport_slot_allocator* allocator, int32_t block, int32_t* slot) {
  return guarded([&] {
    const Call call(allocator);
    std::int32_t& result = checked(slot, "slot");
    result = call->allocator.pin(BlockId{block}).value();
  });
}

stateport_status stateport_slot_allocator_unpin(stateport_slot_allocator* allocator, int32_t slot) {
  return guarded([&] { Call(allocator)->allocator.unpin(SlotId{slot}); });
}

stateport_status stateport_slot_allocator_check(stateport_slot_allocator* allocator) {
  return guarded([&] {
    const Call call(allocator);
    call->blocks.check_invariants();
    call->slots.check_invariants();
    call->allocator.check_invariants();
  });
}
