// SPDX-License-Identifier: Apache-2.0
#include "report/sizing.hpp"

#include "caches/replayer.hpp"
#include "report/figures.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace stateport::replay {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr double factors[] = {0.5, 0.75, 1, 1.5, 2, 4};

struct Run {
  std::int64_t hit_tokens = 0;
  double token_hit_rate = 0;
  double mean_blocks = 0;
  double mean_states = 0;
};

Run run(const Workload& workload, std::int64_t requests, const Budget& budget, PolicyKind policy,
        const ComputeCost& cost, const std::function<bool()>& keep_going) {
  const auto cache = make_budget_cache(policy, budget, cost, workload, false);
  NoPasses none;
  Replayer replayer(workload, *cache, none, std::nullopt);
  Run result;
  std::int64_t samples = 0;
  replayer.run([&](std::int64_t served) {
    if (2 * served > requests) {
      const CacheCounts counts = cache->counts();
      result.mean_blocks += static_cast<double>(counts.resident_blocks);
      result.mean_states += static_cast<double>(counts.resident_states);
      ++samples;
    }
    return served < requests && keep_going();
  });
  if (samples > 0) {
    result.mean_blocks /= static_cast<double>(samples);
    result.mean_states /= static_cast<double>(samples);
  }
  result.hit_tokens = replayer.counts().hit_tokens;
  result.token_hit_rate = replayer.counts().token_hit_rate();
  return result;
}

Budget scaled(Budget budget, double factor) {
  budget.bytes = std::llround(static_cast<double>(budget.bytes) * factor);
  return budget;
}

/// A budget that holds all that the workload can leave.
Budget unlimited(Budget budget, const Workload& workload, PolicyKind policy) {
  const std::int64_t blocks = workload.distinct_blocks();
  const std::int64_t states = states_max(placement_of(policy), static_cast<std::int64_t>(workload.size()), blocks);
  budget.bytes = budget.used_bytes(blocks, states) + 1;
  return budget;
}

}  // namespace

Sizing size_cache(const Workload& workload, std::int64_t requests, const Budget& budget, PolicyKind policy,
                  const ComputeCost& cost, const std::function<bool()>& keep_going) {
  Sizing sizing{.budget = budget, .policy = policy};
  sizing.ceiling =
      run(workload, requests, unlimited(budget, workload, policy), policy, cost, keep_going).token_hit_rate;
  Run before;
  std::int64_t bytes_before = 0;
  for (const double factor : factors) {
    const Budget step = scaled(budget, factor);
    const Run now = run(workload, requests, step, policy, cost, keep_going);
    const double more_gib = static_cast<double>(step.bytes - bytes_before) / gib;
    sizing.steps.push_back({.bytes = step.bytes,
                            .token_hit_rate = now.token_hit_rate,
                            .tokens_per_gib = static_cast<double>(now.hit_tokens - before.hit_tokens) / more_gib});
    if (factor == 1) {
      sizing.hit_tokens = now.hit_tokens;
      sizing.token_hit_rate = now.token_hit_rate;
      sizing.mean_blocks = now.mean_blocks;
      sizing.mean_states = now.mean_states;
    }
    before = now;
    bytes_before = step.bytes;
  }
  return sizing;
}

std::string to_text(const Sizing& sizing) {
  const Budget& budget = sizing.budget;
  const double kv_bytes = sizing.mean_blocks * static_cast<double>(budget.block_bytes());
  const double state_bytes = sizing.mean_states * static_cast<double>(budget.state_bytes);
  const auto memory = static_cast<double>(budget.bytes);
  std::string text = fmt::format(
      "{} as one budget, policy {}: {:.2f} % of tokens hit ({:.2f} % if nothing were evicted)\n"
      "as separate pools: {} for KV ({:.0f} blocks of {} tokens), {} for states ({:.0f} slots of {})\n\n"
      "{:>12} {:>14} {:>28}\n",
      human_bytes(memory), name(sizing.policy), 100 * sizing.token_hit_rate, 100 * sizing.ceiling,
      human_bytes(kv_bytes), sizing.mean_blocks, budget.block_size_tokens, human_bytes(state_bytes), sizing.mean_states,
      human_bytes(static_cast<double>(budget.state_bytes)), "memory", "token hit %", "tokens saved per GiB more");
  for (const Sizing::Step& step : sizing.steps)
    fmt::format_to(std::back_inserter(text), "{:>12} {:>14.2f} {:>28.0f}\n",
                   human_bytes(static_cast<double>(step.bytes)), 100 * step.token_hit_rate, step.tokens_per_gib);
  return text;
}

}  // namespace stateport::replay
