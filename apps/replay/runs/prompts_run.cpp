// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include "caches/policy_kind.hpp"
#include "caches/replayer.hpp"
#include "caches/served_cache.hpp"
#include "report/sweep.hpp"
#include "report/timeline.hpp"
#include "runs/run_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

/// Makes the cache of a run; `tells_stored`: see ReplayCache::stored().
using CacheMaker = std::function<std::unique_ptr<ReplayCache>(bool tells_stored)>;

ReplayCounts serve_prompts(const RunInput& input, ReplayCache& cache, PassMover& mover,
                           const std::optional<ComputeCost>& explain, bool show_progress, Timeline* timeline) {
  Replayer replayer(input.workload, cache, mover, explain, history_tokens(input));
  run_requests(input, replayer, show_progress, [&](std::int64_t requests) {
    if (timeline != nullptr) timeline->served(requests, replayer.counts());
  });
  cache.check_invariants();
  return replayer.counts();
}

/// Serves the prompts twice. `budget`: the costs of the timeline; none: there is no timeline.
void replay_prompts(const RunInput& input, const CacheMaker& make_cache, const StateOptions& states,
                    const std::string& folder, const Budget* budget, Report& report) {
  // Decisions cost as much as they cost an engine whose states lie on a device only if no state passes through this
  // host's caches in between. They must also be the same decisions. This pass runs before the runtime starts, whose
  // waiting threads would share the cores.
  {
    const std::unique_ptr<ReplayCache> cache = make_cache(false);
    NoPasses none;
    report.bookkeeping = serve_prompts(input, *cache, none, std::nullopt, false, nullptr);
  }
  const Runtime runtime;
  report.run.device = runtime.device().name;
  DeviceResource memory;
  const std::unique_ptr<ReplayCache> cache = make_cache(true);
  const std::unique_ptr<PassMover> mover = make_mover(input, states, memory, cache->room(), true, folder, report.run);
  std::optional<Timeline> timeline;
  if (budget != nullptr) timeline.emplace(input.workload, input.requests, *budget, *cache, *mover);
  report.replay =
      serve_prompts(input, *cache, *mover, compute_cost(input.model.name), true, timeline ? &*timeline : nullptr);
  if (timeline) report.timeline = timeline->take(report.replay);
  report.cache = cache->counts();
  report.mover = mover->counts();
  check_passes(report);
}

std::unique_ptr<ReplayCache> make_pool_cache(const PromptsOptions& options, const RunInput& input,
                                             const RunDescription& run, bool tells_stored) {
  const bool tree = options.pools.cache == CacheKind::tree;
  ServedCacheOptions cache{.index = tree ? CacheIndex::tree : CacheIndex::hash,
                           .blocks = run.blocks,
                           .slots = run.slots,
                           .block_size_tokens = run.block_size_tokens,
                           .longest_blocks = input.workload.longest_blocks(),
                           .placement = options.checkpoint,
                           .hash = options.pools.hash,
                           .layout_fingerprint = input.checkpoint.fingerprint(),
                           .eviction = options.pools.order(),
                           .separate_checkpoints = input.model.checkpoint_type.has_value(),
                           .tells_stored = tells_stored};
  if (const auto kv_bytes = input.kv_bytes_per_token)
    cache.memory = {.state_bytes = static_cast<std::int64_t>(input.checkpoint.slot_bytes()),
                    .kv_bytes_per_token = static_cast<std::int64_t>(*kv_bytes)};
  return std::make_unique<ServedCache>(cache);
}

void describe_run(const PromptsOptions& options, const Workload& workload, RunDescription& run) {
  describe_pools(options.pools, workload, run);
  run.checkpoint = name(options.checkpoint);
  if (!run.unlimited) return;
  const std::int64_t distinct = std::max<std::int64_t>(workload.distinct_blocks(), 1);
  run.blocks = distinct + workload.longest_blocks();  // blocks that a request computes again it has twice
  run.slots = states_max(options.checkpoint, static_cast<std::int64_t>(workload.size()), distinct);
}

void describe_run(const MemoryOptions& memory, const Budget& budget, const Workload& workload, RunDescription& run) {
  run.memory = memory;
  run.slots = slots_max(budget, workload, memory.policy);
  run.cache = fmt::format("budget, {}", name(memory.policy));
  run.hash = memory.cache == CacheKind::slots ? "sha256" : "none";
  run.checkpoint = name(placement_of(memory.policy));
}

/// Every policy, of those with tiers if there are any, with a quarter to four times the budget; nothing if that was
/// interrupted.
std::vector<SweepCell> compare_capacities(const MemoryOptions& memory, const RunInput& input, const Budget& budget) {
  const auto times = [&](std::int64_t factor) {
    return std::min(budget.bytes, std::numeric_limits<std::int64_t>::max() / factor) * factor;
  };
  const std::array budgets = {std::max<std::int64_t>(budget.bytes / 4, 1), std::max<std::int64_t>(budget.bytes / 2, 1),
                              budget.bytes, times(2), times(4)};
  std::vector<PolicyKind> policies;
  for (const PolicyKind policy : compared_policies_of(memory.cache))
    if (!memory.has_tiers() || has_tiers(policy)) policies.push_back(policy);
  auto cells =
      sweep(input.workload, input.requests, budget, budgets, policies, compute_cost(input.model.name), keep_going);
  if (!keep_going()) cells.clear();
  return cells;
}

}  // namespace

int run(const PromptsOptions& options) {
  OutputFile json(options.common.json_file);
  OutputFile prometheus(options.prometheus_file);
  const RunInput input = read_input("prompts", options.common);
  Report report{.run = input.run};
  describe_run(options, input.workload, report.run);
  const RunDescription pools = report.run;
  replay_prompts(
      input, [&](bool tells_stored) { return make_pool_cache(options, input, pools, tells_stored); }, options.states,
      {}, nullptr, report);
  prometheus.write(to_prometheus(report.replay.stats));
  return finish(report, json);
}

int run(const BudgetOptions& options) {
  OutputFile json(options.common.json_file);
  OutputFile prometheus(options.prometheus_file);
  const RunInput input = read_input("budget", options.common);
  const Budget budget = make_budget(input, options.memory);
  Report report{.run = input.run};
  describe_run(options.memory, budget, input.workload, report.run);
  replay_prompts(
      input,
      [&](bool tells_stored) {
        return make_budget_cache(options.memory.policy, budget, compute_cost(input.model.name), input.workload,
                                 tells_stored);
      },
      options.states, options.disk_folder, &budget, report);
  if (options.compare) report.capacities = compare_capacities(options.memory, input, budget);
  prometheus.write(to_prometheus(report.replay.stats));
  return finish(report, json);
}

}  // namespace stateport::replay
