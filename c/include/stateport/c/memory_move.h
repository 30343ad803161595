// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_MEMORY_MOVE_H
#define STATEPORT_C_MEMORY_MOVE_H

#include <stdint.h>

/// Memory that moves between KV and states: stateport::MemoryMove. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// The two kinds of content that share the memory of one arena.
typedef enum stateport_memory_part {
  STATEPORT_PART_KV = 0,  ///< numbers are those of KV blocks
  STATEPORT_PART_STATES   ///< numbers are slots of the store that checkpoints lie in
} stateport_memory_part;

typedef enum stateport_move_kind {
  /// No later plan names the extent. Work of this answer and of earlier ones may still use it: unmap it when the
  /// engine's stream has come so far.
  STATEPORT_MOVE_UNMAP = 0,
  STATEPORT_MOVE_MAP  ///< plans may name the extent once the move is settled
} stateport_move_kind;

/// Physical memory is taken from one extent or given to one. Addresses never change. Extent e has the numbers
/// [e * count, (e + 1) * count), with the count of its part in stateport_arena. 24 bytes for ever.
typedef struct stateport_memory_move {
  uint64_t id;   ///< from 1, in the order in which moves were decided
  int32_t kind;  ///< stateport_move_kind
  int32_t part;  ///< stateport_memory_part
  int32_t extent;
  int32_t reserved;  ///< 0
} stateport_memory_move;

#ifdef __cplusplus
}
#endif

#endif
