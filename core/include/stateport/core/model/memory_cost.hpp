// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport {

/// The memory of a state and of a token's KV, in bytes or in any other unit, the same for both.
struct MemoryCost {
  std::int64_t state_bytes = 4096;
  std::int64_t kv_bytes_per_token = 1;

  [[nodiscard]] constexpr std::int64_t of(std::int64_t tokens, std::int64_t states) const noexcept {
    return tokens * kv_bytes_per_token + states * state_bytes;
  }
};

/// Throws InvalidArgument: state_bytes or kv_bytes_per_token < 1.
void check_memory_cost(const MemoryCost& memory);

}  // namespace stateport
