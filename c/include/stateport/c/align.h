// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_ALIGN_H
#define STATEPORT_C_ALIGN_H

#include <stateport/c/align_options.h>
#include <stateport/c/store.h>

/// Checkpoints found by block table: stateport::AlignContext. The conventions are in stateport/c/core.h, the rules
/// in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// Decides on the device, from arrays there, which states a step copies, and copies them, in one launch a call. The
/// slots of a group's store are block ids; block 0 is null.
typedef struct stateport_align stateport_align;

typedef struct stateport_align_binding {
  size_t size;
  stateport_store* store;      ///< at least the group's blocks
  const int32_t* block_table;  ///< device memory, [rows, row_stride], in batch order
  int64_t row_stride;          ///< ids from one row to the next
  int32_t columns;             ///< ids of a row
} stateport_align_binding;

/// In mode STATEPORT_ALIGN_MODE_ALIGN alone.
stateport_status stateport_align_create(const stateport_align_options* options, stateport_align** out);
stateport_status stateport_align_destroy(stateport_align* align);
/// One binding per group; again after the engine moved its tensors. Waits for an upload; no other call does.
stateport_status stateport_align_bind(stateport_align* align, const stateport_align_binding* groups, size_t count);
/// Starts a request with `computed` tokens; forgets a finished, preempted or resumed one.
stateport_status stateport_align_add_request(stateport_align* align, void* stream, int32_t request, int64_t computed);
stateport_status stateport_align_forget(stateport_align* align, void* stream, int32_t request);
/// Copies a batch of host arrays to the device; `out` is valid for work on the stream until the second next call.
stateport_status stateport_align_stage(stateport_align* align, void* stream, const stateport_align_batch* host,
                                       stateport_align_batch* out);
/// Before the forward; after sampling; after sampling, from the token counts after the step. Arrays of the device.
stateport_status stateport_align_pre_step(stateport_align* align, void* stream, const stateport_align_batch* batch);
stateport_status stateport_align_post_step(stateport_align* align, void* stream, const stateport_align_batch* batch);
stateport_status stateport_align_post_step_advanced(stateport_align* align, void* stream,
                                                    const stateport_align_batch* batch);
/// Tokens that each request sampled, before post_step: device arrays [rows].
stateport_status stateport_align_scatter_accepted(stateport_align* align, void* stream, const int32_t* request,
                                                  const int32_t* sampled, int32_t rows);
/// For decode kernels, in batch order, device arrays [padded_rows]: accepted counts and draft counts (-1 for rows with
/// decode[row] == 0 and behind the batch).
stateport_status stateport_align_gather_decode(stateport_align* align, void* stream, int32_t group,
                                               const stateport_align_batch* batch, const uint8_t* decode,
                                               int32_t padded_rows, int32_t* accepted, int32_t* draft_counts);
/// They live as long as the context.
stateport_status stateport_align_group_arrays(stateport_align* align, int32_t group, stateport_align_arrays* out);

#ifdef __cplusplus
}
#endif

#endif
