// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STATE_CHECK_H
#define STATEPORT_C_STATE_CHECK_H

#include <stdint.h>

/// Integrity checks of checkpoints, and their faults: stateport::StateCheck, stateport::StateFault. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

typedef enum stateport_check_kind {
  STATEPORT_CHECK_PUBLISHED = 0,  ///< the state becomes a checkpoint: its sums are remembered
  STATEPORT_CHECK_READ  ///< a pass or a transfer reads the checkpoint: its sums are compared with those remembered
} stateport_check_kind;

/// A state whose bytes an integrity check looks at. Plain data.
typedef struct stateport_state_check {
  int32_t kind;      ///< stateport_check_kind
  int32_t group;     ///< of layers
  int32_t slot;      ///< in the store of the group: where the checkpoint lies
  int32_t reserved;  ///< 0
  uint64_t content;  ///< names the checkpoint: the number of its publication in this cache, from 1
  int64_t request;   ///< that made or reads the state; STATEPORT_NONE: a transfer to a tier reads it
  uint64_t pass;     ///< whose commit publishes the state, or which reads it; 0: no pass does
} stateport_state_check;

typedef enum stateport_fault_kind {
  STATEPORT_FAULT_CHANGED = 0,  ///< the bytes that were read are not those that were published
  STATEPORT_FAULT_OTHER_STATE,  ///< the slot held another publication: an older one, or a newer one
  STATEPORT_FAULT_NOT_FINITE    ///< the state was published with a NaN or an infinity
} stateport_fault_kind;

/// A check that failed. Plain data.
typedef struct stateport_state_fault {
  int32_t kind;    ///< stateport_fault_kind
  int32_t tensor;  ///< the first tensor of the store for which this holds; -1: the whole slot
  stateport_state_check check;
} stateport_state_fault;

#ifdef __cplusplus
}
#endif

#endif
