// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace stateport {

/// The memory of a state and of a token's KV, in bytes or in any other unit, the same for both.
struct MemoryCost {
  std::int64_t state_bytes = 4096;
  std::int64_t kv_bytes_per_token = 1;

  /// Of counts that are not negative. A sum that exceeds 64 bits is the largest number.
  [[nodiscard]] constexpr std::int64_t of(std::int64_t tokens, std::int64_t states) const noexcept {
    std::int64_t kv = 0, checkpoints = 0, sum = 0;
    const bool fits = !__builtin_mul_overflow(tokens, kv_bytes_per_token, &kv) &&
                      !__builtin_mul_overflow(states, state_bytes, &checkpoints) &&
                      !__builtin_add_overflow(kv, checkpoints, &sum);
    return fits ? sum : std::numeric_limits<std::int64_t>::max();
  }
};

/// Throws InvalidArgument: state_bytes or kv_bytes_per_token < 1.
void check_memory_cost(const MemoryCost& memory);

}  // namespace stateport
