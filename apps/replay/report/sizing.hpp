// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/cost.hpp>

#include "caches/budget.hpp"
#include "caches/policy_kind.hpp"
#include "caches/recorded_hits.hpp"
#include "workload/workload.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stateport::replay {

/// The worth of a memory for a workload.
struct Sizing {
  Budget budget;
  PolicyKind policy = PolicyKind::hix;
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  double token_hit_rate = 0;
  double ceiling = 0;  ///< token hit rate of a cache that never evicts, with the same checkpoints
  std::int64_t hit_tokens = 0;
  RecordedHits recorded;
  /// Means over the second half of the requests, when the cache has filled: separate pools should hold these.
  double mean_blocks = 0;
  double mean_states = 0;

  struct Step {
    std::int64_t bytes = 0;
    double token_hit_rate = 0;
    double tokens_per_gib = 0;  ///< hit tokens more than with the step before, for each GiB more
  };
  std::vector<Step> steps;  ///< half, three quarters, one, one and a half, two and four times the budget
  /// The budget with host memory below it: the same parts of its host_bytes, or of the budget if these are 0. The
  /// first one is compared with no host memory. Without those that hold no state and block; empty for a policy
  /// without tiers.
  std::vector<Step> host_steps;
};

/// Serves the first `requests` requests with several budgets around the given one, and with several host memories below
/// it; everything else is as `budget` says. `keep_going` is asked after each request; false ends it with the results so
/// far.
[[nodiscard]] Sizing size_cache(const Workload& workload, std::int64_t requests, const Budget& budget,
                                PolicyKind policy, const ComputeCost& cost, const std::function<bool()>& keep_going);

/// For people.
[[nodiscard]] std::string to_text(const Sizing& sizing);

}  // namespace stateport::replay
