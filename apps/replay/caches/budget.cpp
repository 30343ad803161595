// SPDX-License-Identifier: Apache-2.0
#include "caches/budget.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::replay {

void check_budget(const Budget& budget) {
  require(budget.bytes >= 1, "budget.bytes", budget.bytes, "must be at least 1");
  require(budget.state_bytes >= 1, "budget.state_bytes", budget.state_bytes, "must be at least 1");
  require(budget.kv_bytes_per_token >= 1, "budget.kv_bytes_per_token", budget.kv_bytes_per_token, "must be at least 1");
  require(budget.block_size_tokens >= 1, "budget.block_size_tokens", budget.block_size_tokens, "must be at least 1");
  require(budget.host_bytes >= 0, "budget.host_bytes", budget.host_bytes, "must not be negative");
  require(budget.file_bytes >= 0, "budget.file_bytes", budget.file_bytes, "must not be negative");
  require(budget.arena_tokens >= 0, "budget.arena_tokens", budget.arena_tokens, "must not be negative");
  require(budget.state_share >= 0 && budget.state_share < 1, "budget.state_share", budget.state_share,
          "must be from 0 to 1");
  require(budget.arena_tokens == 0 || budget.state_share == 0, "budget.state_share", budget.state_share,
          "must be 0 with an arena, which has no walls");
  require(budget.remote_bytes >= 0, "budget.remote_bytes", budget.remote_bytes, "must not be negative");
}

}  // namespace stateport::replay
