// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/eviction.h>
#include <stateport/core/evict/eviction_policy.hpp>

#include <cstdint>
#include <memory>

namespace stateport::c {

/// Nothing given for both is the default.
[[nodiscard]] MemoryCost read_memory_cost(std::int64_t state_bytes, std::int64_t kv_bytes_per_token);

/// An order, and its options if it learns.
struct NamedEviction {
  EvictionOrder order;
  EvictionOptions options;
  MemoryCost memory;
};
/// The options of a caller, which are not null.
[[nodiscard]] NamedEviction read_eviction(const stateport_eviction_options* options, const char* argument);

/// Of a cache of its own. Null for null.
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_policy(const stateport_eviction_options* options,
                                                          const char* argument);

/// Both throw for a hint that no policy would take. Null says nothing.
[[nodiscard]] ReuseHint from_c(const stateport_reuse_hint& given);
[[nodiscard]] ReuseHint read_hint(const stateport_reuse_hint* hint, const char* argument);

}  // namespace stateport::c
