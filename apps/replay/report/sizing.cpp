// SPDX-License-Identifier: Apache-2.0
#include "report/sizing.hpp"

#include "caches/replayer.hpp"
#include "report/figures.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

namespace stateport::replay {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr double factors[] = {0.5, 0.75, 1, 1.5, 2, 4};

struct Run {
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;
  RecordedHits recorded;
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
  result.requests = replayer.counts().requests;
  result.input_tokens = replayer.counts().input_tokens;
  result.hit_tokens = replayer.counts().hit_tokens;
  result.recorded = replayer.counts().recorded;
  result.token_hit_rate = replayer.counts().token_hit_rate();
  return result;
}

std::int64_t part_of(std::int64_t bytes, double factor) {
  return std::llround(static_cast<double>(bytes) * factor);
}

Sizing::Step step_of(std::int64_t bytes, const Run& now, std::int64_t bytes_before, const Run& before) {
  const double more_gib = static_cast<double>(bytes - bytes_before) / gib;
  return {.bytes = bytes,
          .token_hit_rate = now.token_hit_rate,
          .tokens_per_gib = static_cast<double>(now.hit_tokens - before.hit_tokens) / more_gib};
}

/// A budget that holds all that the workload can leave, on the device.
Budget unlimited(Budget budget, const Workload& workload, PolicyKind policy) {
  budget.host_bytes = 0;
  budget.file_bytes = 0;
  const std::int64_t blocks = workload.distinct_blocks();
  const std::int64_t states = states_max(placement_of(policy), static_cast<std::int64_t>(workload.size()), blocks);
  budget.bytes = budget.used_bytes(blocks, states) + 1;
  return budget;
}

std::vector<Sizing::Step> size_host(const Workload& workload, std::int64_t requests, Budget budget, PolicyKind policy,
                                    const ComputeCost& cost, const std::function<bool()>& keep_going) {
  const std::int64_t whole_bytes = budget.host_bytes > 0 ? budget.host_bytes : budget.bytes;
  std::vector<Sizing::Step> steps;
  budget.host_bytes = 0;
  Run before = run(workload, requests, budget, policy, cost, keep_going);
  for (const double factor : factors) {
    const std::int64_t bytes = part_of(whole_bytes, factor);
    if (bytes < budget.state_bytes + budget.block_bytes()) continue;  // a tier holds at least one of each
    const std::int64_t bytes_before = std::exchange(budget.host_bytes, bytes);
    const Run now = run(workload, requests, budget, policy, cost, keep_going);
    steps.push_back(step_of(bytes, now, bytes_before, before));
    before = now;
  }
  return steps;
}

std::string describe(const Budget& budget) {
  std::string text = human_bytes(static_cast<double>(budget.bytes)) + " as one budget";
  if (budget.host_bytes > 0)
    text += fmt::format(", {} of host memory below it", human_bytes(static_cast<double>(budget.host_bytes)));
  if (budget.file_bytes > 0)
    text += fmt::format(", {} of files below", human_bytes(static_cast<double>(budget.file_bytes)));
  return text;
}

std::string to_table(const char* title, std::span<const Sizing::Step> steps) {
  std::string text = fmt::format("\n{:>12} {:>14} {:>28}\n", title, "token hit %", "tokens saved per GiB more");
  for (const Sizing::Step& step : steps)
    fmt::format_to(std::back_inserter(text), "{:>12} {:>14.2f} {:>28.0f}\n",
                   human_bytes(static_cast<double>(step.bytes)), 100 * step.token_hit_rate, step.tokens_per_gib);
  return text;
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
    Budget part = budget;
    part.bytes = part_of(budget.bytes, factor);
    const Run now = run(workload, requests, part, policy, cost, keep_going);
    sizing.steps.push_back(step_of(part.bytes, now, std::exchange(bytes_before, part.bytes), before));
    before = now;
    if (factor != 1) continue;
    sizing.requests = now.requests;
    sizing.input_tokens = now.input_tokens;
    sizing.hit_tokens = now.hit_tokens;
    sizing.recorded = now.recorded;
    sizing.token_hit_rate = now.token_hit_rate;
    sizing.mean_blocks = now.mean_blocks;
    sizing.mean_states = now.mean_states;
  }
  if (has_tiers(policy)) sizing.host_steps = size_host(workload, requests, budget, policy, cost, keep_going);
  return sizing;
}

std::string to_text(const Sizing& sizing) {
  const Budget& budget = sizing.budget;
  const double kv_bytes = sizing.mean_blocks * static_cast<double>(budget.block_bytes());
  const double state_bytes = sizing.mean_states * static_cast<double>(budget.state_bytes);
  std::string text = fmt::format(
      "{} requests, {} input tokens\n"
      "{}, policy {}: {:.2f} % of tokens hit ({:.2f} % if nothing were evicted)\n"
      "as separate pools: {} for KV ({:.0f} blocks of {} tokens), {} for states ({:.0f} slots of {})\n",
      sizing.requests, sizing.input_tokens, describe(budget), name(sizing.policy), 100 * sizing.token_hit_rate,
      100 * sizing.ceiling, human_bytes(kv_bytes), sizing.mean_blocks, budget.block_size_tokens,
      human_bytes(state_bytes), sizing.mean_states, human_bytes(static_cast<double>(budget.state_bytes)));
  if (sizing.recorded.requests > 0) text += describe(sizing.recorded) + '\n';
  text += to_table("memory", sizing.steps);
  if (!sizing.host_steps.empty()) text += to_table("host below", sizing.host_steps);
  return text;
}

}  // namespace stateport::replay
