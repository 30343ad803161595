// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace stateport {

class EvictionPolicy;
struct ComputeCost;
struct EvictionOptions;
struct MemoryCost;

/// The policies that learn, behind make_eviction_policy().
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options,
                                                                 const MemoryCost& memory);
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_hix_eviction(const EvictionOptions& options,
                                                                const MemoryCost& memory);

/// Throws InvalidArgument unless the benefit is finite and not negative.
void check_benefit(const ComputeCost& benefit);

}  // namespace stateport
