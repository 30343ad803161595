// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/cost.hpp>

#include "caches/budget.hpp"
#include "caches/policy_kind.hpp"
#include "workload/workload.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace stateport::replay {

/// The figures of one policy with one budget.
struct SweepCell {
  PolicyKind policy = PolicyKind::hix;
  std::int64_t budget_bytes = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t host_hit_tokens = 0;  ///< of these, loaded from the host, and in the next from files
  std::int64_t file_hit_tokens = 0;
  double token_hit_rate = 0;
  std::int64_t victims = 0;
  std::int64_t metadata_bytes = 0;
  std::int64_t memory_moves = 0;  ///< CacheCounts::memory_moves
  double bookkeeping_ns_p50 = 0;  ///< per request
  double bookkeeping_ns_mean = 0;
};

/// The cells of a sweep, and the requests of each.
struct SweepReport {
  std::vector<SweepCell> cells;
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  bool interrupted = false;  ///< cells are missing
};

/// Serves the first `requests` requests under each budget with each policy, states not made. `budget.bytes` is
/// replaced. Stops early, with the cells so far, when `keep_going` says false.
[[nodiscard]] std::vector<SweepCell> sweep(const Workload& workload, std::int64_t requests, Budget budget,
                                           std::span<const std::int64_t> budgets_bytes,
                                           std::span<const PolicyKind> policies, const ComputeCost& cost,
                                           const std::function<bool()>& keep_going);

/// A row for each policy, a column for each budget.
[[nodiscard]] std::string to_table(std::span<const SweepCell> cells);

}  // namespace stateport::replay
