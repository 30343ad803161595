// SPDX-License-Identifier: Apache-2.0
// Shares of tenants in a request cache.
#include <stateport/c/cache_tenants.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_set_quota(stateport_request_cache* cache, const stateport_namespace* tenant,
                                                   int64_t floor_bytes, int64_t most_bytes) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    held->tenants().set_quota({.salt = from_c(tenant).salt, .floor_bytes = floor_bytes, .most_bytes = most_bytes});
  });
}

stateport_status stateport_request_cache_tenant_usage(stateport_request_cache* cache, const stateport_namespace* tenant,
                                                      int64_t* kv_bytes, int64_t* state_bytes) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::int64_t& kv = checked(kv_bytes, "kv_bytes");
    std::int64_t& states = checked(state_bytes, "state_bytes");
    const TenantUsage usage = held->tenants().usage(from_c(tenant).salt);
    kv = usage.kv_bytes;
    states = usage.state_bytes;
  });
}
