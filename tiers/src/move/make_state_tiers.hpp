// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "move/copy_lane.hpp"

namespace stateport {

/// Tiers whose copies go through a lane of the caller's. For tests.
[[nodiscard]] StateTiers make_state_tiers(MemoryResource& host_memory, const StateTiersOptions& options,
                                          const tiers::CopyLaneMaker& lanes);

}  // namespace stateport
