// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_ROUTER_INDEX_H
#define STATEPORT_C_ROUTER_INDEX_H

#include <stateport/c/request_types.h>
#include <stateport/c/status.h>

/// The contents of the caches of many workers, by their events, for a router: stateport::RouterIndex. The conventions
/// are in stateport/c/core.h, the rules in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// Answers how much of a prompt each worker can reuse. Events of a worker have numbers without gaps. After a gap the
/// worker is unknown until the missing ones come, or an event STATEPORT_EVENT_CLEARED.
typedef struct stateport_router_index stateport_router_index;

typedef struct stateport_router_options {
  size_t size;
  int32_t workers_max;   ///< workers are numbered from 0 to workers_max - 1. 0: 64
  int32_t state_groups;  ///< groups whose states a worker needs; 0: KV alone can be reused
  int64_t prefixes_max;  ///< that are remembered at a time. 0: 1,048,576
  int64_t blocks_max;    ///< blocks of a prompt that are looked at. 0: 16,384
} stateport_router_options;

/// The part of a prompt that one worker can reuse. 24 bytes for ever.
typedef struct stateport_router_reach {
  int32_t worker;
  int32_t medium;     ///< stateport_medium: the slowest that the longest prefix needs
  int32_t blocks[4];  ///< by medium: of the longest prefix that needs no slower one
} stateport_router_reach;

typedef struct stateport_router_usage {
  size_t size;
  int64_t prefixes;  ///< that are remembered
  int64_t refused;   ///< stored contents that found no room
} stateport_router_usage;

stateport_status stateport_router_index_create(const stateport_router_options* options, stateport_router_index** out);
stateport_status stateport_router_index_destroy(stateport_router_index* index);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_router_index_check(stateport_router_index* index);

/// A worker comes, or begins anew: nothing is known of its cache. next_sequence: of its first event.
stateport_status stateport_router_index_join(stateport_router_index* index, int32_t worker, uint64_t next_sequence);
/// A worker is gone, with all its contents.
stateport_status stateport_router_index_leave(stateport_router_index* index, int32_t worker);
/// Takes events with numbers of their own. known: not 0: none is missing.
stateport_status stateport_router_index_hear(stateport_router_index* index, int32_t worker,
                                             const stateport_cache_event* events, size_t count, stateport_flag* known);
/// Takes the events of a message with this number; theirs have no meaning.
stateport_status stateport_router_index_hear_message(stateport_router_index* index, int32_t worker, uint64_t sequence,
                                                     const stateport_cache_event* events, size_t count,
                                                     stateport_flag* known);
/// The number of the first event that was not heard, 0 for a worker that has not joined, and whether the worker is
/// known.
stateport_status stateport_router_index_worker(stateport_router_index* index, int32_t worker, uint64_t* next_sequence,
                                               stateport_flag* known);
/// prefixes [blocks, 2]: of a prompt. Writes the known workers that can reuse a part of it, in their order, at most
/// `capacity`, and how many there are into `count`.
stateport_status stateport_router_index_find(stateport_router_index* index, const uint64_t* prefixes, size_t blocks,
                                             stateport_router_reach* out, size_t capacity, size_t* count);
stateport_status stateport_router_index_usage(stateport_router_index* index, stateport_router_usage* out);

#ifdef __cplusplus
}
#endif

#endif
