// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/file_tier.hpp>

#include "file/file_calls.hpp"

#include <vector>

namespace stateport {

/// A tier whose calls to the system go through `calls`, which must outlive it. For tests.
[[nodiscard]] FileTier make_file_tier(const FileTierOptions& options, std::vector<ImageLayout> layouts,
                                      FileCalls& calls);

}  // namespace stateport
