// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_INTEGRITY_H
#define STATEPORT_C_CACHE_INTEGRITY_H

#include <stateport/c/request_cache.h>
#include <stateport/c/state_check.h>
#include <stateport/c/status.h>

/// Checks of checkpoints that a request cache names: stateport::CacheIntegrity. The conventions are in
/// stateport/c/core.h; stateport/c/integrity.h makes the checks.
///
///     start, plan, commit, end … → take_checks → begin the checks → execute the answer → end the checks
///     poll names faults → withdraw → end the requests that read a wrong state as preempted, and start them again
///
/// STATEPORT_INVALID_STATE for a cache without stateport_request_cache_options.integrity.
#ifdef __cplusplus
extern "C" {
#endif

/// Since the cache was made.
typedef struct stateport_integrity_usage {
  size_t size;
  int64_t published;         ///< checks that remember a checkpoint
  int64_t reads;             ///< checks that compare one
  int64_t changed;           ///< faults that withdraw was told
  int64_t other_state;       ///< the same
  int64_t not_finite;        ///< the same
  int64_t withdrawn_states;  ///< checkpoints that withdraw took back
  int64_t unchecked_states;  ///< checkpoints that found no room in the list of checks
  int64_t checks_max;  ///< the most checks that one take_checks answers; stateport_integrity_options has at least that
} stateport_integrity_usage;

/// The checks that were decided since the last call, in order. They lie in memory of the cache until the next
/// take_checks. An engine takes them after each call whose answer it executes.
stateport_status stateport_request_cache_take_checks(stateport_request_cache* cache,
                                                     const stateport_state_check** checks, size_t* count);
/// No later prompt finds the checkpoints that the faults name, on the device or in a tier but the remote one. A
/// checkpoint that is not in its slot any more is left alone. withdrawn: how many were taken back. Refused: a group, a
/// slot or a kind that does not exist; nothing has changed then.
stateport_status stateport_request_cache_withdraw(stateport_request_cache* cache, const stateport_state_fault* faults,
                                                  size_t count, int32_t* withdrawn);
stateport_status stateport_request_cache_integrity_usage(stateport_request_cache* cache,
                                                         stateport_integrity_usage* out);

#ifdef __cplusplus
}
#endif

#endif
