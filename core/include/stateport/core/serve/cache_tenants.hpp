// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>

#include <cstdint>
#include <optional>

namespace stateport {

/// The share of a tenant in the memory of the device. Bytes are counted by RequestCacheOptions::memory: of KV and
/// states together, cached or held by running requests. States of running requests count where they lie among
/// checkpoints. In columns a block of states counts as the state's bytes, divided by the number of groups.
struct TenantQuota {
  std::optional<NameKey> salt;   ///< names the tenant: Namespace::salt
  std::int64_t floor_bytes = 0;  ///< that no other tenant can take
  std::int64_t most_bytes = 0;   ///< 0: no limit; else at least floor_bytes
};

/// The memory of the device that a tenant has: the bytes that TenantQuota counts.
struct TenantUsage {
  std::int64_t kv_bytes = 0;
  std::int64_t state_bytes = 0;

  friend bool operator==(const TenantUsage&, const TenantUsage&) = default;
};

/// Shares of tenants in the memory of the device. A quota is a rule of eviction: it moves nothing, and reserves nothing
/// that its tenant does not use. Not thread-safe, as its cache.
///
/// Floor. An eviction for another tenant leaves a tenant with floor_bytes, or with all that it has if that is less,
/// even if a row then finds no room. A tenant may keep up to one block of KV and one state more. Its own requests evict
/// its content within the floor only if nothing else can be evicted.
///
/// Limit. Content of a tenant with more than most_bytes is evicted before all other content. Each commit and each end
/// evicts its content until it has no more than that, or its running requests hold the rest, even while memory is free.
///
/// All other victims compete by the eviction policy, whoever has them. Tiers below the device know no shares.
class CacheTenants {
 public:
  /// Sets the quota of a tenant, also while requests run. Content that is cached already counts; the next commit or end
  /// brings it down to the limit. A floor and a limit of 0 take the quota back. Throws InvalidArgument, and changes
  /// nothing, for negative numbers, a limit below the floor, more tenants than RequestCacheOptions::tenant_quotas, and
  /// floors that together could leave less than the KV and the state of one request of max_request_tokens: of the
  /// memory that KV and states share, of kv_tokens, and of the states (in columns: of each group). Also for a floor in
  /// an arena whose extents have several states. O(all).
  virtual void set_quota(const TenantQuota& quota) = 0;
  /// Of any tenant. O(1) for one with a quota, else O(all).
  [[nodiscard]] virtual TenantUsage usage(const std::optional<NameKey>& salt) const = 0;

 protected:
  ~CacheTenants() = default;
};

}  // namespace stateport
