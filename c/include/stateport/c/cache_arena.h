// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_ARENA_H
#define STATEPORT_C_CACHE_ARENA_H

#include <stateport/c/memory_move.h>
#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>

/// Memory that KV and states share, as its owner sees it: stateport::CacheArena. The conventions are in
/// stateport/c/core.h.
///
///     plan, insert, commit → (the work of the answer) → enqueue `kv_copies` → carry `moves` out → settle_move
///
/// Both come after all other work of that answer and of those before it. Copies empty extents that moves unmap: the
/// engine enqueues them before any later pass, which reads the copies. It carries moves out when it likes and in any
/// order: nothing that a plan names depends on a move that is not settled. Copies and moves are named once, and carried
/// out even if the plan that names them is cancelled or replaced. They lie in memory of the cache until its next plan,
/// insert, commit or take_memory: settle_move leaves them there.
///
/// Ranks. settle_move is a part of the sequence of calls: what is evicted and where content lies depend on it. The
/// ranks of a group settle each move at the same point of that sequence, and as done only if it is done on all of them.
///
/// Without stateport_slot_layout.arena no answer has them, and all calls here but arena_usage are refused with
/// STATEPORT_INVALID_STATE.
#ifdef __cplusplus
extern "C" {
#endif

/// The memory of an arena, by the cache's own count.
typedef struct stateport_arena_usage {
  size_t size;
  int64_t kv_bytes;       ///< of extents that are mapped, or may be
  int64_t state_bytes;    ///< the same; both together are never more than stateport_arena.bytes
  int64_t moves;          ///< decided since the cache was made
  int64_t refused_moves;  ///< settled as not done
} stateport_arena_usage;

/// Memory work that no answer has named.
typedef struct stateport_memory_plan {
  size_t size;
  const stateport_slot_copy* kv_copies;
  size_t kv_copy_count;
  const stateport_memory_move* moves;
  size_t move_count;
} stateport_memory_plan;

/// Answers the memory work that no other answer has: of an insert that found no room, and maps that settled unmaps made
/// possible. If nobody takes these, the next commit or plan without room has them.
stateport_status stateport_request_cache_take_memory(stateport_request_cache* cache, stateport_memory_plan* out);
/// The move ended. done: 0: the system refused it. A map that is not done leaves its extent unmapped, and another one
/// is tried; after two refusals the cache asks for no further memory until some is given back. An unmap that is not
/// done leaves its extent mapped. Refused: a number that is not under way.
stateport_status stateport_request_cache_settle_move(stateport_request_cache* cache, uint64_t move, int32_t done);
/// mapped: not 0: plans may name the numbers of this extent. An engine maps these extents before it makes the first
/// plan. part: stateport_memory_part. Refused: an extent that does not exist.
stateport_status stateport_request_cache_is_mapped(stateport_request_cache* cache, int32_t part, int32_t extent,
                                                   uint8_t* mapped);
/// All zero without an arena.
stateport_status stateport_request_cache_arena_usage(stateport_request_cache* cache, stateport_arena_usage* out);

#ifdef __cplusplus
}
#endif

#endif
