// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_SESSIONS_H
#define STATEPORT_C_CACHE_SESSIONS_H

#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>

/// Sessions of a request cache, by their numbers (stateport_reuse_hint.session of a prompt): stateport::CacheSessions.
/// The conventions are in stateport/c/core.h.
///
/// A session owns the KV and the states that its requests make, until a request of another session, or of none, reuses
/// them. Contents of a closed session are demoted: an eviction takes them before all other contents, whatever the order
/// of eviction is. Nothing is evicted as long as there is room. A session that starts a request is open again, and all
/// that is left of its contents competes as before. Pinned contents, those of running requests and those within a
/// tenant's floor stay.
///
/// STATEPORT_INVALID_STATE for a cache without stateport_request_cache_options.sessions.
#ifdef __cplusplus
extern "C" {
#endif

/// The contents of the device that one session alone has used.
typedef struct stateport_session_usage {
  size_t size;
  stateport_flag is_open;  ///< 0: it was closed, or the cache does not know it (any more)
  int64_t kv_tokens;       ///< of whole blocks
  int64_t states;          ///< checkpoints; in columns: blocks of states
  int64_t bytes;           ///< of both
} stateport_session_usage;

/// The session expects no further prompt. The end of a request closes its session, too, if the hint that holds for the
/// end has last_turn. closed: 0: the session is unknown, or was closed already. Refused: 0, which is no session. O(1).
stateport_status stateport_request_cache_close_session(stateport_request_cache* cache, uint64_t session,
                                                       uint8_t* closed);
/// Refused: 0. O(1).
stateport_status stateport_request_cache_session_usage(stateport_request_cache* cache, uint64_t session,
                                                       stateport_session_usage* out);

#ifdef __cplusplus
}
#endif

#endif
