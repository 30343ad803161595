// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_TENANTS_H
#define STATEPORT_C_CACHE_TENANTS_H

#include <stateport/c/prefix_tree.h>
#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>

/// Shares of tenants in the memory of the device: stateport::CacheTenants. The conventions are in stateport/c/core.h.
///
/// A tenant is a stateport_namespace.salt, whatever the extra key; null: the tenant without a name. Its bytes are those
/// of KV and states together, cached or held by running requests, by state_bytes and kv_bytes_per_token of the cache's
/// stateport_eviction_options. In columns a block of states counts as state_bytes, divided by the number of groups.
///
/// STATEPORT_INVALID_STATE for a cache without stateport_request_cache_options.tenant_quotas.
#ifdef __cplusplus
extern "C" {
#endif

/// Sets the quota of a tenant, also while requests run. Content that is cached already counts.
///
/// floor_bytes: no eviction for another tenant leaves the tenant with less of what it had, even if a row then finds no
/// room. most_bytes: 0: no limit; else at least floor_bytes: content of a tenant with more is evicted before all other
/// content, at the next commit or end even while memory is free; memory of running requests counts and stays. Both 0:
/// the quota is taken back.
///
/// Refused: more tenants than tenant_quotas, and floors that together could leave less than the KV and the state of one
/// request of max_request_tokens. O(all).
stateport_status stateport_request_cache_set_quota(stateport_request_cache* cache, const stateport_namespace* tenant,
                                                   int64_t floor_bytes, int64_t most_bytes);
/// The bytes of any tenant. O(1) for one with a quota, else O(all).
stateport_status stateport_request_cache_tenant_usage(stateport_request_cache* cache, const stateport_namespace* tenant,
                                                      int64_t* kv_bytes, int64_t* state_bytes);

#ifdef __cplusplus
}
#endif

#endif
