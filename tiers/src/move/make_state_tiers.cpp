// SPDX-License-Identifier: Apache-2.0
#include "move/make_state_tiers.hpp"

namespace stateport {

StateTiers make_state_tiers(MemoryResource& host_memory, const StateTiersOptions& options,
                            const tiers::CopyLaneMaker& lanes) {
  return StateTiers(host_memory, options, lanes);
}

}  // namespace stateport
