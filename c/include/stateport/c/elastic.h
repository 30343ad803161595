// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_ELASTIC_H
#define STATEPORT_C_ELASTIC_H

#include <stateport/c/cache_arena.h>
#include <stateport/c/store.h>

/// Memory that moves between the store of KV and the store of states while an engine serves:
/// stateport::ElasticResource, ElasticStore and MemoryMover. The conventions are in stateport/c/core.h.
///
///     elastic_memory_create → elastic_store_create, twice → request_cache_create, with the extents of both
///     memory_mover_create → plan, insert, commit → (the work of the answer) → memory_mover_carry_out
#ifdef __cplusplus
extern "C" {
#endif

/// Physical memory of the device under one limit. Several stores may share it.
typedef struct stateport_elastic_memory stateport_elastic_memory;

typedef struct stateport_elastic_options {
  size_t size;
  uint64_t limit_bytes;  ///< of physical memory at a time; at least 1
  /// Memory comes in multiples of this: a power of two, and a multiple of the smallest granule that the device has (2
  /// MiB on a GPU, a page on a host). 0: that granule. From 2 MiB on, an OpenMP build asks the system for huge pages.
  uint64_t granularity_bytes;
} stateport_elastic_options;

typedef struct stateport_elastic_usage {
  size_t size;
  uint64_t granularity_bytes;
  uint64_t limit_bytes;
  uint64_t mapped_bytes;  ///< never above limit_bytes
  uint64_t held_bytes;  ///< mapped_bytes, and the physical memory that is kept to be mapped next; never above the limit
} stateport_elastic_usage;

/// Fails with STATEPORT_BACKEND_ERROR where the device cannot map memory, and unless a runtime has started it.
stateport_status stateport_elastic_memory_create(const stateport_elastic_options* options,
                                                 stateport_elastic_memory** out);
/// Stores that were made of it keep it.
stateport_status stateport_elastic_memory_destroy(stateport_elastic_memory* memory);
stateport_status stateport_elastic_memory_usage(stateport_elastic_memory* memory, stateport_elastic_usage* out);

// --- Elastic stores --------------------------------------------------------------------------------------------------

/// A store with addresses for all of its slots, of which no extent has memory yet. Addresses never change. Every call
/// that takes a store takes it. Use of a slot whose extent is not mapped is a fault of the device, or SIGSEGV. A store
/// of KV has a slot for each block, and the keys and the values of each layer are its tensors. Options: allocate and
/// deallocate are null. Fails with STATEPORT_OUT_OF_MEMORY when the system has no such addresses, or when there is no
/// memory for the tensors that stay mapped.
stateport_status stateport_elastic_store_create(stateport_elastic_memory* memory, stateport_spec* spec,
                                                const stateport_store_options* options, void* stream,
                                                stateport_store** out);

typedef struct stateport_elastic_store_info {
  size_t size;
  int32_t extent_count;    ///< slots of one extent: extent e has the slots [e * extent_count, (e + 1) * extent_count)
  int32_t extents;         ///< of the store
  int64_t extent_bytes;    ///< of physical memory that one extent takes in all tensors
  int64_t fixed_bytes;     ///< of physical memory of small tensors, which stay mapped (STATEPORT_LAYER_MAJOR alone)
  int32_t mapped_extents;  ///< now
} stateport_elastic_store_info;

/// Refused, as are the calls below: a store without elastic memory, an extent that does not exist.
stateport_status stateport_elastic_store_describe(stateport_store* store, stateport_elastic_store_info* out);
stateport_status stateport_elastic_store_is_mapped(stateport_store* store, int32_t extent, uint8_t* mapped);
/// Contents are undefined afterwards. Fails with STATEPORT_OUT_OF_MEMORY when the limit or the system refuses. Refused:
/// an extent that is mapped; a store that a mover has (STATEPORT_INVALID_STATE).
stateport_status stateport_elastic_store_map(stateport_store* store, int32_t extent);
/// The caller sees to it that no work uses the extent any more. Refused: an extent that is not mapped; a store that a
/// mover has (STATEPORT_INVALID_STATE).
stateport_status stateport_elastic_store_unmap(stateport_store* store, int32_t extent);

// --- Memory plans ----------------------------------------------------------------------------------------------------

/// Carries out the memory work of a cache between the stores of its KV and of its states, and settles its moves. For a
/// cache alone: ranks of a group map and unmap by themselves, and settle each move when it ended on all of them.
typedef struct stateport_memory_mover stateport_memory_mover;

/// Maps the extents that the cache counts as mapped. The mover keeps the cache and the stores. Refused: a cache without
/// an arena, or with other extents or slots than the stores; a cache that has decided moves, a store that another mover
/// has or of which an extent is mapped (STATEPORT_INVALID_STATE). Fails with STATEPORT_OUT_OF_MEMORY when the memory
/// refuses an extent: nothing is mapped then.
stateport_status stateport_memory_mover_create(stateport_request_cache* cache, stateport_store* kv,
                                               stateport_store* states, stateport_memory_mover** out);
/// Unmaps that still wait are not carried out.
stateport_status stateport_memory_mover_destroy(stateport_memory_mover* mover);
/// Enqueues the copies of KV, carries out maps, unmaps extents once the stream has come past all work before this call,
/// and settles the moves that have ended. The work of the answer that has the plan is enqueued before. wait: not 0:
/// waits for the stream, so that all moves end in this call; 0: unmaps whose time has not come are left to a later one.
/// settled: how many moves ended, of this plan and of earlier ones. Once all plans are carried out, maps that these make
/// possible (stateport_request_cache_take_memory) are carried out and settled besides, and are not counted. Every plan
/// with moves is carried out once, in the order of the answers. plan: null: there is no new one. Refused: moves that are not the next ones of the cache,
/// copies of blocks that are not mapped.
stateport_status stateport_memory_mover_carry_out(stateport_memory_mover* mover, void* stream,
                                                  const stateport_memory_plan* plan, int32_t wait, size_t* settled);

#ifdef __cplusplus
}
#endif

#endif
