// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_ALIGN_OPTIONS_H
#define STATEPORT_C_ALIGN_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/// Types that planning on the host (align_planner.h) and planning on the device (align.h) share. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// Which states a block table keeps.
typedef enum stateport_align_mode {
  STATEPORT_ALIGN_MODE_ALIGN = 0,  ///< the running window, and the state at each block boundary that a step reaches
  STATEPORT_ALIGN_MODE_NONE,       ///< the running window alone
  STATEPORT_ALIGN_MODE_ALL         ///< the scan kernel itself writes the state at each boundary
} stateport_align_mode;

/// Layers that share a block table.
typedef struct stateport_align_group {
  size_t size;
  int32_t block_size_tokens;
  int32_t blocks;       ///< block ids are below
  int32_t conv_window;  ///< the shortest of the group's conv states; 0: it has none
  /// stateport_align_planner_retention: distance of the kept columns in tokens; 0: all; -1: named boundaries alone
  int64_t retention_tokens;
} stateport_align_group;

typedef struct stateport_align_options {
  size_t size;
  int32_t drafts;  ///< at most
  int32_t max_requests;
  const stateport_align_group* groups;
  size_t group_count;
  int32_t mode;  ///< stateport_align_mode
} stateport_align_options;

/// One array each, [rows], in batch order. Negative requests are skipped.
typedef struct stateport_align_batch {
  size_t size;
  const int32_t* request;    ///< request slots, below max_requests
  const int32_t* computed;   ///< tokens before the step; post_step_advanced: after it
  const int32_t* scheduled;  ///< tokens of the step, drafts included
  const int32_t* drafts;     ///< read by post_step; in a batch to stage null is 0
  int32_t rows;
} stateport_align_batch;

/// Arrays [max_requests] of a group, by request slot: of the device for a context, of the host for a planner.
typedef struct stateport_align_arrays {
  size_t size;
  const int32_t* columns;  ///< running ones; -1: begins with the empty state; -2: no request is in the slot
  const int32_t* accepted;
  const int32_t* src_columns;  ///< of the last pre-step; null for a planner
  const int32_t* src_offsets;  ///< the same
} stateport_align_arrays;

#ifdef __cplusplus
}
#endif

#endif
