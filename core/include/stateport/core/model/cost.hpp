// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace stateport {

/// The cost of computing the tokens [from, to) of a prompt: linear · tokens + quadratic · (to² - from²). The default
/// counts tokens; with a model's figures it counts FLOPs.
struct ComputeCost {
  double linear = 1;
  double quadratic = 0;

  [[nodiscard]] constexpr double of(std::int64_t from_tokens, std::int64_t to_tokens) const noexcept {
    return up_to(to_tokens) - up_to(from_tokens);
  }
  friend constexpr bool operator==(const ComputeCost&, const ComputeCost&) noexcept = default;

 private:
  [[nodiscard]] constexpr double up_to(std::int64_t tokens) const noexcept {
    const auto length = static_cast<double>(tokens);
    return linear * length + quadratic * length * length;
  }
};

/// Throws InvalidArgument for a factor that is NaN, negative or above 1e100, as "<argument>.linear" or
/// "<argument>.quadratic". Factors that pass give finite costs for all lengths, so that costs can be compared.
void check_compute_cost(const ComputeCost& cost, std::string_view argument);

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
