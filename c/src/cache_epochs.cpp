// SPDX-License-Identifier: Apache-2.0
// Contents of a request cache that are to be forgotten.
#include <stateport/c/cache_epochs.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_advance_epoch(stateport_request_cache* cache, uint64_t epoch,
                                                       uint64_t* current) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const std::uint64_t begun = held->cache->epochs().advance(epoch);
    if (current != nullptr) *current = begun;
  });
}

stateport_status stateport_request_cache_epoch(stateport_request_cache* cache, uint64_t* epoch) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    checked(epoch, "epoch") = held->cache->epochs().current();
  });
}

stateport_status stateport_request_cache_forget(stateport_request_cache* cache, const stateport_namespace* name_space,
                                                int32_t by) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    held->cache->epochs().forget(from_c(name_space), enumerator(by, ForgetBy::salt, "by"));
  });
}

stateport_status stateport_request_cache_is_stale(stateport_request_cache* cache, int64_t request, uint8_t* stale) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::uint8_t& reported = checked(stale, "stale");
    reported = held->cache->epochs().is_stale(RequestId{request}) ? 1 : 0;
  });
}
