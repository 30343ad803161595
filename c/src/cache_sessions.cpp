// SPDX-License-Identifier: Apache-2.0
// Sessions of a request cache.
#include <stateport/c/cache_sessions.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_close_session(stateport_request_cache* cache, uint64_t session,
                                                       uint8_t* closed) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::uint8_t& result = checked(closed, "closed");
    result = held->sessions().close(session) ? 1 : 0;
  });
}

stateport_status stateport_request_cache_session_usage(stateport_request_cache* cache, uint64_t session,
                                                       stateport_session_usage* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const SessionUsage usage = held->sessions().usage(session);
    result.write(
        {.is_open = usage.is_open, .kv_tokens = usage.kv_tokens, .states = usage.states, .bytes = usage.bytes});
  });
}
