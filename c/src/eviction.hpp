// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <stateport/c/eviction.h>
#include <stateport/core/evict/eviction_policy.hpp>

namespace stateport::c {

/// Nothing given for both is the default.
[[nodiscard]] MemoryCost read_memory_cost(std::int64_t state_bytes, std::int64_t kv_bytes_per_token);

/// Of a cache of its own. Null for null.
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_policy(const stateport_eviction_options* options,
                                                          const char* argument);

/// Throws for a hint that no policy would take. Null says nothing.
[[nodiscard]] ReuseHint read_hint(const stateport_reuse_hint* hint, const char* argument);

}  // namespace stateport::c
