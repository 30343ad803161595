// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/cost.hpp>

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

namespace stateport {
namespace {

/// Far above the FLOPs of any token, and far below an overflow: lengths squared are below 1e38.
constexpr double factor_max = 1e100;

void check_factor(double factor, std::string_view argument, std::string_view member) {
  if (factor >= 0 && factor <= factor_max) return;
  require(false, fmt::format("{}.{}", argument, member), factor, "must be between 0 and 1e100");
}

}  // namespace

void check_compute_cost(const ComputeCost& cost, std::string_view argument) {
  check_factor(cost.linear, argument, "linear");
  check_factor(cost.quadratic, argument, "quadratic");
}

void check_memory_cost(const MemoryCost& memory) {
  require(memory.state_bytes >= 1, "state_bytes", memory.state_bytes, "must be at least 1");
  require(memory.kv_bytes_per_token >= 1, "kv_bytes_per_token", memory.kv_bytes_per_token, "must be at least 1");
}

}  // namespace stateport
