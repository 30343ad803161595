// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STEP_COMMITTER_H
#define STATEPORT_C_STEP_COMMITTER_H

#include <stateport/c/store.h>

/// Moves the states of a decode step with drafts: stateport::StepCommitter. The conventions are in stateport/c/core.h,
/// the addresses of a strip in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// Moves the state after one chosen step of each request from the engine's scratch memory to a live slot, and that of
/// another step to a checkpoint slot: all tensors, rows and both targets in one launch. fp32, fp16 and bf16 are
/// converted where scratch and store differ. Executes the stateport_step_commits of a request cache.
typedef struct stateport_step_committer stateport_step_committer;

/// Where one tensor's states of all steps lie: that of request b after step t starts at
/// base + b * request_stride_bytes + t * step_stride_bytes. States may overlap: a strip of conv inputs has a step
/// stride of one token.
typedef struct stateport_step_scratch {
  size_t size;
  const void* base;  ///< device memory; it must outlive the committer
  int64_t request_stride_bytes;
  int64_t step_stride_bytes;
  int64_t token_stride;    ///< elements; conv only: from one token of the window to the next
  int64_t channel_stride;  ///< elements; conv only
  int32_t type;            ///< stateport_element_type
} stateport_step_scratch;

/// Device memory [rows], read when the kernel runs. A step or a slot that is negative or out of range skips that part
/// of a row.
typedef struct stateport_step_targets {
  size_t size;
  const int32_t* last_step;
  const int32_t* live_slot;
  const int32_t* track_step;  ///< with track_slot, or null both: nothing is tracked
  const int32_t* track_slot;
  int32_t rows;
} stateport_step_targets;

/// scratch: one for each tensor of the destination, in its order. requests: rows of the scratch; steps: states of each.
stateport_status stateport_step_committer_create(const stateport_step_scratch* scratch, size_t count,
                                                 stateport_store* destination, int32_t requests, int32_t steps,
                                                 stateport_step_committer** out);
stateport_status stateport_step_committer_destroy(stateport_step_committer* committer);
/// That no slot is named twice is the caller's care. Refused: rows < 0 or more than the scratch has, null arrays.
stateport_status stateport_step_committer_commit(stateport_step_committer* committer, void* stream,
                                                 const stateport_step_targets* targets);

#ifdef __cplusplus
}
#endif

#endif
