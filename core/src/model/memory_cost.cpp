// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/memory_cost.hpp>

#include <stateport/core/model/error.hpp>

namespace stateport {

void check_memory_cost(const MemoryCost& memory) {
  require(memory.state_bytes >= 1, "state_bytes", memory.state_bytes, "must be at least 1");
  require(memory.kv_bytes_per_token >= 1, "kv_bytes_per_token", memory.kv_bytes_per_token, "must be at least 1");
}

}  // namespace stateport
