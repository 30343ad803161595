// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_SLOT_ALLOCATOR_H
#define STATEPORT_C_SLOT_ALLOCATOR_H

#include <stateport/c/copies.h>
#include <stateport/c/eviction.h>
#include <stateport/c/hash.h>
#include <stateport/c/status.h>

/// Checkpoints found by block hash: stateport::SlotAllocator over a stateport::BlockPool. The conventions are in
/// stateport/c/core.h, the rules in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// A pool of KV blocks, and the slots that some of them have for the state at their end. Calls that name a block or a
/// slot refuse one out of range.
typedef struct stateport_slot_allocator stateport_slot_allocator;

typedef enum stateport_block_policy {
  STATEPORT_BLOCK_LRU = 0,  ///< a registered block stays cached without references
  STATEPORT_BLOCK_REF_ZERO  ///< it is dropped with the last reference
} stateport_block_policy;

/// A state that an allocator evicts. Its block keeps its KV and its hash.
typedef struct stateport_slot_victim {
  size_t size;
  int32_t block;
  int32_t slot;         ///< holds the state until it is written again
  int64_t token_count;  ///< of the slot's tag; -1: it was never tagged
  uint64_t prefix[2];
  uint64_t layout_fingerprint;
  int64_t hash;  ///< by which the state was registered; not positive if it was not
} stateport_slot_victim;

typedef struct stateport_slot_allocator_options {
  size_t size;
  int32_t blocks;  ///< at least 1; the last one is never handed out
  int32_t slots;
  int32_t policy;  ///< stateport_block_policy
  /// Which states are evicted. Null: the least recently used. An order whose keys shrink with each use (mru) is
  /// refused.
  const stateport_eviction_options* eviction;
  /// Not 0: the blocks, the last one too, are of the engine's own KV pool, which hands them out. The engine reports
  /// changes, in batches: retain_blocks, release_blocks, register_blocks, and deregister_blocks before one that it
  /// evicted is written again. allocate_blocks is refused, and a `policy` other than 0.
  stateport_flag external_blocks;
  /// Null, or called for every victim of a call, in order of eviction, before its slot is free or given to another
  /// block. A copy that it enqueues on the stream that writes the slot later still reads the state. The slot cannot be
  /// kept. `victim` stays until it returns. The rules of callbacks are in stateport/c/core.h.
  void (*on_victim)(const stateport_slot_victim* victim, void* context);
  void* on_victim_context;  ///< handed to on_victim; must outlive the allocator and the planners made of it
} stateport_slot_allocator_options;

typedef struct stateport_slot_allocator_info {
  size_t size;
  int32_t free_blocks;
  int32_t cached_blocks;  ///< registered and without references: can be evicted
  int32_t free_slots;
  int32_t registered_states;       ///< found by hash
  int64_t evictions;               ///< states evicted, for other blocks or by stateport_slot_allocator_evict
  stateport_flag external_blocks;  ///< of the engine's own pool: registered, with references or without
} stateport_slot_allocator_info;

typedef struct stateport_found_state {
  size_t size;
  int64_t index;  ///< of the hash that has a state; -1: none has
  int32_t block;
  int32_t slot;
} stateport_found_state;

typedef struct stateport_restore {
  size_t size;
  int32_t check;             ///< stateport_tag_check; the copy is a plan only for STATEPORT_TAG_MATCH
  stateport_slot_copy copy;  ///< from the block's slot to a slot of the store of live states
} stateport_restore;

/// A request whose states are stored, as it is reported to a policy.
typedef struct stateport_served_prompt {
  size_t size;
  double now_s;                      ///< the caller's clock in seconds: finite, not negative, never goes back
  const int64_t* hashes;             ///< [count], of its full blocks; those after the first one <= 0 do not count
  size_t count;                      ///< of hashes
  int32_t usable_blocks;             ///< the forward needs a token: (tokens - 1) / block size
  int32_t matched_blocks;            ///< whose KV was cached before: a state there is at a branch point
  int32_t hit_blocks;                ///< the state that the request continued from; 0: none. No count is negative
  const stateport_reuse_hint* hint;  ///< about its end; null: nothing is known
} stateport_served_prompt;

stateport_status stateport_slot_allocator_create(const stateport_slot_allocator_options* options,
                                                 stateport_slot_allocator** out);
stateport_status stateport_slot_allocator_destroy(stateport_slot_allocator* allocator);
stateport_status stateport_slot_allocator_describe(stateport_slot_allocator* allocator,
                                                   stateport_slot_allocator_info* out);

/// Blocks with one reference each, evicting cached ones if needed; all, or STATEPORT_NO_CAPACITY.
stateport_status stateport_slot_allocator_allocate_blocks(stateport_slot_allocator* allocator, int32_t* out,
                                                          size_t count);
/// One reference more, or less, for each occurrence. retain refuses free blocks (external ones begin with it); release,
/// more than there are.
stateport_status stateport_slot_allocator_retain_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                        size_t count);
stateport_status stateport_slot_allocator_release_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                         size_t count);
/// Makes the KV of full blocks findable. parents[i]: the hash of the block before it, 0 for none; null: all 0.
stateport_status stateport_slot_allocator_register_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                          const int64_t* hashes, const int64_t* parents, size_t count);
/// External blocks: the engine evicted these, which have a hash and no reference; or it dropped all of its blocks.
/// Their states are gone. All, or none.
stateport_status stateport_slot_allocator_deregister_blocks(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                            size_t count);
stateport_status stateport_slot_allocator_clear_blocks(stateport_slot_allocator* allocator);
/// The blocks of the leading hashes, up to the first that no block has; their number into `found`.
stateport_status stateport_slot_allocator_find_blocks(stateport_slot_allocator* allocator, const int64_t* hashes,
                                                      size_t count, int32_t* blocks, size_t* found);
/// Advances the clock of last use, once per step of the engine.
stateport_status stateport_slot_allocator_advance_tick(stateport_slot_allocator* allocator);

/// Gives every block a slot, by eviction if needed; all, or STATEPORT_NO_CAPACITY. Blocks that have one keep it.
stateport_status stateport_slot_allocator_allocate_slots(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                         size_t count, int32_t* slots);
/// Evicts `states` states: their slots are free afterwards. For an engine with one memory for KV and states. How many
/// were evicted into `evicted` (or null): fewer if all that are left are referenced or pinned.
stateport_status stateport_slot_allocator_evict(stateport_slot_allocator* allocator, int64_t states, int64_t* evicted);
/// The states that would be evicted next, in order: at most `capacity`; their number into `count`. Nothing changes.
stateport_status stateport_slot_allocator_peek_victims(stateport_slot_allocator* allocator, stateport_slot_victim* out,
                                                       size_t capacity, size_t* count);
/// STATEPORT_NONE if the block has none.
stateport_status stateport_slot_allocator_slot_of(stateport_slot_allocator* allocator, int32_t block, int32_t* slot);
/// Tells the content of a block's slot, once the copy into it was enqueued.
stateport_status stateport_slot_allocator_set_tag(stateport_slot_allocator* allocator, int32_t block,
                                                  const stateport_tag* tag);
/// Makes states findable; hashes <= 0 are skipped. Tag them first.
stateport_status stateport_slot_allocator_register_states(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                          const int64_t* hashes, size_t count);
/// Reports a request to the eviction policy, once its states have their tags and are registered. gdsf and hix give a
/// state that no request has reported rank 0: such states are evicted first, least recently used first. Without a
/// policy the hint is checked, and nothing happens.
stateport_status stateport_slot_allocator_note_served(stateport_slot_allocator* allocator,
                                                      const stateport_served_prompt* prompt);
/// The last of the hashes that has a state.
stateport_status stateport_slot_allocator_find_state(stateport_slot_allocator* allocator, const int64_t* hashes,
                                                     size_t count, stateport_found_state* out);
/// Checks the tag of a block's slot and plans the copy into a live slot.
stateport_status stateport_slot_allocator_restore(stateport_slot_allocator* allocator, int32_t block, int32_t live_slot,
                                                  const stateport_tag* wanted, stateport_restore* out);
/// Hides a state before its slot is written again; the slot stays.
stateport_status stateport_slot_allocator_withdraw(stateport_slot_allocator* allocator, int32_t block);
/// Gives the slots of blocks back.
stateport_status stateport_slot_allocator_invalidate(stateport_slot_allocator* allocator, const int32_t* blocks,
                                                     size_t count);
/// Forbids eviction while a copy is in flight. Every pin needs an unpin of the slot.
stateport_status stateport_slot_allocator_pin(stateport_slot_allocator* allocator, int32_t block, int32_t* slot);
stateport_status stateport_slot_allocator_unpin(stateport_slot_allocator* allocator, int32_t slot);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_slot_allocator_check(stateport_slot_allocator* allocator);

#ifdef __cplusplus
}
#endif

#endif
