// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_ALIGN_PLANNER_H
#define STATEPORT_C_ALIGN_PLANNER_H

#include <stateport/c/align_options.h>
#include <stateport/c/copies.h>
#include <stateport/c/status.h>

/// Checkpoints found by block table, planned on the host: stateport::AlignPlanner. The conventions are in
/// stateport/c/core.h, the rules in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// Decides on the host which states a step copies, for an engine whose counters are there:
///
///     add_requests → [ pre_step → copies, forward → accept → post_step → copies ]… → forget
///
/// Slots of a plan are block ids; block 0 is null. A call that is refused has changed nothing but the plans.
typedef struct stateport_align_planner stateport_align_planner;

/// The block ids of one group in host memory, one row per row of the batch.
typedef struct stateport_block_table {
  size_t size;
  const int32_t* ids;  ///< [id_count], [rows, row_stride]
  size_t id_count;
  int64_t row_stride;  ///< ids from one row to the next
  int32_t columns;     ///< ids of a row
} stateport_block_table;

/// The plan of one step.
typedef struct stateport_align_step {
  size_t size;
  int64_t copies;         ///< over all groups
  int64_t skipped_parts;  ///< parts of copies without a valid block at an end
} stateport_align_step;

/// A prefill chunk and the position at which a checkpoint is wanted, in tokens.
typedef struct stateport_chunk_checkpoint {
  size_t size;
  int64_t start;
  int64_t end;
  int64_t position;
  int64_t hash_block;  ///< tokens of a hashed block
  int64_t alignment;   ///< distance at which the kernel can stop, from the start; 0: it cannot
} stateport_chunk_checkpoint;

stateport_status stateport_align_planner_create(const stateport_align_options* options, stateport_align_planner** out);
stateport_status stateport_align_planner_destroy(stateport_align_planner* planner);
/// Starts requests (again), each with computed[i] tokens. All, or none.
stateport_status stateport_align_planner_add_requests(stateport_align_planner* planner, const int32_t* requests,
                                                      const int64_t* computed, size_t count);
/// Finished, preempted or resumed ones. All, or none; one that is not remembered is harmless.
stateport_status stateport_align_planner_forget(stateport_align_planner* planner, const int32_t* requests,
                                                size_t count);

/// Before the forward. tables: one per group. Arrays of the batch are of the host, here and below.
stateport_status stateport_align_planner_pre_step(stateport_align_planner* planner, const stateport_align_batch* batch,
                                                  const stateport_block_table* tables, size_t table_count,
                                                  stateport_align_step* out);
/// After sampling: sampled [rows] tokens of each request.
stateport_status stateport_align_planner_accept(stateport_align_planner* planner, const int32_t* request,
                                                const int32_t* sampled, size_t rows);
/// After accept; and after accept, of a batch whose `computed` counts the tokens after the step and whose other counts
/// are not read.
stateport_status stateport_align_planner_post_step(stateport_align_planner* planner, const stateport_align_batch* batch,
                                                   const stateport_block_table* tables, size_t table_count,
                                                   stateport_align_step* out);
stateport_status stateport_align_planner_post_step_advanced(stateport_align_planner* planner,
                                                            const stateport_align_batch* batch,
                                                            const stateport_block_table* tables, size_t table_count,
                                                            stateport_align_step* out);
/// The copies of the last step for one group, in memory of the planner until its next step: for
/// stateport_copier_copy_shifted.
stateport_status stateport_align_planner_plan(stateport_align_planner* planner, int32_t group,
                                              const stateport_slot_copy** copies, size_t* count);

/// Valid as long as the planner, and changed by its calls.
stateport_status stateport_align_planner_arrays(stateport_align_planner* planner, int32_t group,
                                                stateport_align_arrays* out);
/// Accepted counts in batch order for the forward: out [rows], 1 for rows that are skipped.
stateport_status stateport_align_planner_gather_accepted(stateport_align_planner* planner, int32_t group,
                                                         const int32_t* request, size_t rows, int32_t* out);
/// keep[i] = 1 for a column start_column + i that is kept: by the group's `retention_tokens`, or because it ends at or
/// last before one of `boundaries` (tokens).
stateport_status stateport_align_planner_retention(stateport_align_planner* planner, int32_t group,
                                                   int64_t start_column, const int64_t* boundaries,
                                                   size_t boundary_count, uint8_t* keep, size_t columns);
/// Where a checkpoint inside a prefill chunk is stored, by the rule that the kernel uses: column (STATEPORT_NONE:
/// nowhere) and offset in tokens from the start of the chunk. Tell with stateport_align_planner_wrote that it was.
stateport_status stateport_align_planner_checkpoint_in(stateport_align_planner* planner, int32_t group,
                                                       const stateport_chunk_checkpoint* chunk, int32_t* column,
                                                       int64_t* offset);

/// Before blocks are registered for reuse: published[i] is 1 if blocks[i] holds exactly the state after tokens[i]
/// tokens, else 0, and then it must not be registered. All are checked, or none.
stateport_status stateport_align_planner_publish(stateport_align_planner* planner, int32_t group, const int32_t* blocks,
                                                 const int64_t* tokens, size_t count, uint8_t* published);
/// The caller itself had states written into blocks: tokens[i] tokens into blocks[i]; -1: their content is not known,
/// or they have a new owner. All, or none. Say so before a block is used again.
stateport_status stateport_align_planner_wrote(stateport_align_planner* planner, int32_t group, const int32_t* blocks,
                                               const int64_t* tokens, size_t count);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_align_planner_check(stateport_align_planner* planner);

#ifdef __cplusplus
}
#endif

#endif
