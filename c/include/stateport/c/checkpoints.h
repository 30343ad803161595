// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CHECKPOINTS_H
#define STATEPORT_C_CHECKPOINTS_H

#include <stateport/c/copies.h>
#include <stateport/c/slot_allocator.h>
#include <stateport/c/status.h>

/// Where a prefill saves states for a slot allocator: stateport::CheckpointPlanner. The conventions are in
/// stateport/c/core.h, the rules in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// Plans the checkpoints of a prefill batch, and brings them into slots:
///
///     plan (all rows) → device_arrays → forward → commit → copies enqueued → publish
///                                                   └──────── abandon ◄──┘
///
/// Checkpoints are optional: one that finds no slot is dropped and counted. Nothing is found by hash before publish.
typedef struct stateport_checkpoint_planner stateport_checkpoint_planner;

enum { STATEPORT_CHECKPOINTS_MAX = 3 };  ///< intermediate ones of a row

typedef struct stateport_checkpoint_options {
  size_t size;
  int32_t block_size_tokens;    ///< 0: 256
  int32_t alignment_tokens;     ///< distance in a chunk at which the scan kernel can save states; 0: 128
  int32_t max_rows;             ///< prefill rows of a step; 0: 1
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint
} stateport_checkpoint_options;

/// One row of the prefill batch: the forward runs tokens [finished + skip, finished + chunk) of a prompt.
typedef struct stateport_prefill_chunk {
  size_t size;
  int32_t row;        ///< position in the prefill batch, in the scan kernel's order
  int32_t live_slot;  ///< where the request's running state lives
  int64_t prompt_tokens;
  int64_t finished_tokens;
  int64_t skip_tokens;
  int64_t chunk_tokens;     ///< with the skipped ones
  int32_t matched_blocks;   ///< where the request leaves the shared prefix
  int32_t required_blocks;  ///< that the prompt touches up to the end of the chunk
  const int32_t* blocks;    ///< of the request, at least its full ones
  size_t block_count;
  const uint64_t* prefixes;  ///< [prefix_count, 2] of the full blocks: see stateport_hash_blocks
  size_t prefix_count;
} stateport_prefill_chunk;

/// The states that one row will save: the state after offsets[i] tokens of the forward belongs to blocks[i], the state
/// at the end of the prompt to end_block (or STATEPORT_NONE).
typedef struct stateport_planned_checkpoints {
  size_t size;
  int32_t count;
  int32_t offsets[STATEPORT_CHECKPOINTS_MAX];
  int32_t blocks[STATEPORT_CHECKPOINTS_MAX];
  int32_t end_block;
} stateport_planned_checkpoints;

/// For the scan kernels, in host memory of the planner until its next call; both null when no intermediate state is
/// due.
typedef struct stateport_checkpoint_arrays {
  size_t size;
  const int32_t* offsets;  ///< [rows, 3]; 0 behind a row's count
  const int32_t* counts;   ///< [rows]
} stateport_checkpoint_arrays;

/// The copies of one commit, in memory of the planner until publish or abandon: for stateport_copier_commit_scratch.
typedef struct stateport_checkpoint_commit {
  size_t size;
  const stateport_slot_copy* from_scratch;  ///< source: the i-th state that the scan kernels saved, packed by row
  size_t scratch_count;
  const stateport_slot_copy* from_live;  ///< source: live slots
  size_t live_count;
  int32_t dropped;  ///< checkpoints that found no slot
} stateport_checkpoint_commit;

/// The allocator may be destroyed before the planner. Destroying a planner abandons its pending commit.
stateport_status stateport_checkpoint_planner_create(stateport_slot_allocator* allocator,
                                                     const stateport_checkpoint_options* options,
                                                     stateport_checkpoint_planner** out);
stateport_status stateport_checkpoint_planner_destroy(stateport_checkpoint_planner* planner);

/// Plans rows in order; a second plan of a row replaces the first. out: [count]. The first chunk that is refused ends
/// the call: those before it are planned, and `done` says how many. Refused while a commit is pending.
stateport_status stateport_checkpoint_planner_plan(stateport_checkpoint_planner* planner,
                                                   const stateport_prefill_chunk* chunks, size_t count,
                                                   stateport_planned_checkpoints* out, size_t* done);
stateport_status stateport_checkpoint_planner_device_arrays(stateport_checkpoint_planner* planner, int32_t rows,
                                                            stateport_checkpoint_arrays* out);
/// Gives slots to the planned checkpoints and lists the copies. Blocks without a hash get none. Refused while a commit
/// is pending.
stateport_status stateport_checkpoint_planner_commit(stateport_checkpoint_planner* planner,
                                                     stateport_checkpoint_commit* out);
/// The copies were enqueued: tags and hashes are set, the states can be found. Refused without a pending commit.
stateport_status stateport_checkpoint_planner_publish(stateport_checkpoint_planner* planner);
/// They were not: slots that hold nothing go back. Refused without a pending commit.
stateport_status stateport_checkpoint_planner_abandon(stateport_checkpoint_planner* planner);
/// Forgets the planned checkpoints. Refused while a commit is pending.
stateport_status stateport_checkpoint_planner_clear(stateport_checkpoint_planner* planner);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_checkpoint_planner_check(stateport_checkpoint_planner* planner);

/// Scratch slots that one step can need.
stateport_status stateport_scratch_slots_bound(int64_t max_tokens, int32_t block_size_tokens, int32_t max_requests,
                                               int32_t* out);
/// Cache slots that a budget in bytes holds beside the scratch slots; STATEPORT_OUT_OF_MEMORY if not even one.
stateport_status stateport_slots_for_budget(size_t budget_bytes, size_t slot_bytes, int32_t scratch_slots,
                                            int64_t* out);

#ifdef __cplusplus
}
#endif

#endif
