// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <stateport/core/evict/eviction_policy.hpp>

namespace stateport {

/// The policies with memory, behind make_eviction_policy().
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options);
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_hix_eviction(const EvictionOptions& options);

/// Throws InvalidArgument unless both sizes are positive and the benefit is finite and not negative.
void check_options(const EvictionOptions& options);

}  // namespace stateport
