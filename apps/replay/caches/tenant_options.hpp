// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "workload/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace stateport::replay {

/// Two tenants that share one cache.
struct TenantOptions {
  double flood = 0;                    ///< times of add_flood(); 0: there are no tenants
  std::int64_t quiet_floor_bytes = 0;  ///< TenantQuota::floor_bytes of the quiet tenant
  std::int64_t flood_most_bytes = 0;   ///< TenantQuota::most_bytes of the flood

  /// RequestCacheOptions::tenant_quotas.
  [[nodiscard]] constexpr std::int32_t quotas() const noexcept { return flood > 0 ? 2 : 0; }
  [[nodiscard]] constexpr std::int64_t floor_of(Tenant tenant) const noexcept {
    return tenant == Tenant::quiet ? quiet_floor_bytes : 0;
  }
  [[nodiscard]] constexpr std::int64_t most_of(Tenant tenant) const noexcept {
    return tenant == Tenant::flood ? flood_most_bytes : 0;
  }
};

/// Not of Tenant::none.
inline constexpr Tenant tenants[] = {Tenant::quiet, Tenant::flood};

[[nodiscard]] constexpr std::string_view name(Tenant tenant) noexcept {
  constexpr std::string_view names[tenant_count] = {"none", "quiet", "flood"};
  return names[static_cast<std::size_t>(tenant)];
}

[[nodiscard]] inline Namespace name_space_of(Tenant tenant) {
  if (tenant == Tenant::none) return {};
  return {.salt = NameKey(name(tenant))};
}

/// Sets the quotas of a cache whose bytes are `scale` times those of the options. A cache has room for no more KV than
/// its workload has: a floor above that is all of it but for one request. Throws InvalidArgument for a floor that the
/// cache refuses, with its reason, which counts in its bytes.
inline void set_quotas(RequestCache& cache, const TenantOptions& options, std::int64_t scale) try {
  if (cache.tenants() == nullptr) return;
  const RequestCacheOptions& sizes = cache.options();
  const std::int64_t block = sizes.block_size_tokens;
  // A tenant with a floor may keep a block and a state more.
  const std::int64_t spare_blocks = sizes.kv_tokens / block - ceil_div(sizes.max_request_tokens, block) - 1;
  const std::int64_t most_floor =
      std::max<std::int64_t>(spare_blocks * block * sizes.memory.kv_bytes_per_token - sizes.memory.state_bytes, 0);
  for (const Tenant tenant : tenants)
    cache.tenants()->set_quota({.salt = name_space_of(tenant).salt,
                                .floor_bytes = std::min(options.floor_of(tenant) * scale, most_floor),
                                .most_bytes = options.most_of(tenant) * scale});
} catch (const InvalidArgument& error) {
  throw InvalidArgument("quiet_floor_bytes", fmt::to_string(options.quiet_floor_bytes), error.what());
}

}  // namespace stateport::replay
