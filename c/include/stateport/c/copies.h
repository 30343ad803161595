// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_COPIES_H
#define STATEPORT_C_COPIES_H

#include <stddef.h>
#include <stdint.h>

/// Copies and tags of states: stateport::SlotCopy, stateport::StateTag. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// One state to copy; 16 bytes for ever. A negative slot skips its part.
///     conv tensors:      tokens [conv_shift, window) of src_slot → tokens [0, window - conv_shift) of dst_slot
///     recurrent tensors: the whole state of recurrent_src_slot   → dst_slot
typedef struct stateport_slot_copy {
  int32_t src_slot;
  int32_t dst_slot;
  int32_t conv_shift;          ///< 0: the whole window
  int32_t recurrent_src_slot;  ///< usually src_slot
} stateport_slot_copy;

/// The content of a slot: the state after exactly token_count tokens of a prefix, in one memory layout.
typedef struct stateport_tag {
  size_t size;
  int64_t token_count;  ///< -1: nothing
  uint64_t prefix[2];
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint
} stateport_tag;

/// How the tag of a slot compares with the wanted one: the first member that differs.
typedef enum stateport_tag_check {
  STATEPORT_TAG_MATCH = 0,    ///< the slot holds exactly the wanted state
  STATEPORT_TAG_EMPTY,        ///< it was never tagged
  STATEPORT_TAG_TOKEN_COUNT,  ///< the state is one after another number of tokens
  STATEPORT_TAG_PREFIX,       ///< the state is one after other tokens
  STATEPORT_TAG_LAYOUT        ///< its bytes mean something else
} stateport_tag_check;

#ifdef __cplusplus
}
#endif

#endif
