// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_INTEGRITY_H
#define STATEPORT_C_INTEGRITY_H

#include <stateport/c/cache_integrity.h>
#include <stateport/c/store.h>

/// Finds checkpoints whose bytes changed between their publication and their use: stateport::StateIntegrity. The
/// conventions are in stateport/c/core.h.
///
///     before a pass:  integrity_begin → integrity_copy of restores → integrity_end → [wait → poll] → forward
///     after a pass:   integrity_begin → kernels of the commit, integrity_copy of checkpoints → integrity_end
///     when the engine has waited for a pass: integrity_poll, before it trusts the tokens
#ifdef __cplusplus
extern "C" {
#endif

/// Sums of the checkpoints in the stores of a cache, in device memory, and the checks under way.
typedef struct stateport_integrity stateport_integrity;

typedef struct stateport_integrity_options {
  size_t size;
  int32_t checks_max;  ///< checks that may be under way: begun, and not yet polled; 0: 4096
} stateport_integrity_options;

/// stores: one for each group of layers, the one with the checkpoints; they are kept. options: null: the defaults.
/// Refused: no store, checks_max < 0, memory that kernels cannot reach. Waits for the device.
stateport_status stateport_integrity_create(stateport_store* const* stores, size_t count,
                                            const stateport_integrity_options* options, stateport_integrity** out);
stateport_status stateport_integrity_destroy(stateport_integrity* integrity);

/// Begins checks as stateport_request_cache_take_checks names them, before the work of that answer is enqueued. Waits
/// for the stream if more than checks_max checks would be under way. Refused: more than checks_max checks, a group or a
/// slot that does not exist, a stream that is captured; STATEPORT_INVALID_STATE if an end is due, or if
/// checks_max faults wait for poll.
stateport_status stateport_integrity_begin(stateport_integrity* integrity, void* stream,
                                           const stateport_state_check* checks, size_t count);
/// stateport_copier_copy, which also sums the states of this group that begin named. Refused as that call, and a copier
/// neither of whose stores is that of the group; STATEPORT_INVALID_STATE before begin.
stateport_status stateport_integrity_copy(stateport_integrity* integrity, void* stream, stateport_copier* copier,
                                          const stateport_slot_copy* copies, size_t count, int32_t group);
/// Enqueues the sums of all other states that begin named, then compares or remembers. STATEPORT_INVALID_STATE before
/// begin.
stateport_status stateport_integrity_end(stateport_integrity* integrity, void* stream);
/// The faults of checks that the device has finished, in the order of begin. Each is answered once. They lie in memory
/// of the object until its next call. Waits for nothing.
stateport_status stateport_integrity_poll(stateport_integrity* integrity, const stateport_state_fault** faults,
                                          size_t* count);
/// Waits for the stream, so that poll answers all checks that have ended.
stateport_status stateport_integrity_wait(stateport_integrity* integrity, void* stream);

#ifdef __cplusplus
}
#endif

#endif
