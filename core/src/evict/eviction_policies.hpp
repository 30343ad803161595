// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace stateport {

class EvictionPolicy;
struct EvictionOptions;
struct MemoryCost;

/// The policies that learn, behind make_eviction_policy().
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options,
                                                                 const MemoryCost& memory);
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_hix_eviction(const EvictionOptions& options,
                                                                const MemoryCost& memory);

}  // namespace stateport
