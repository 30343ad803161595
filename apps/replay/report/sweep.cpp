// SPDX-License-Identifier: Apache-2.0
#include "report/sweep.hpp"

#include "caches/replayer.hpp"
#include "report/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace stateport::replay {
namespace {

SweepCell run_cell(const Workload& workload, std::int64_t requests, const Budget& budget, PolicyKind policy,
                   const ComputeCost& cost, const std::function<bool()>& keep_going) {
  const auto cache = make_budget_cache(policy, budget, cost, workload, false);
  NoPasses none;
  Replayer replayer(workload, *cache, none, std::nullopt);
  replayer.run([&](std::int64_t served) { return served < requests && keep_going(); });
  cache->check_invariants();
  const ReplayCounts& counts = replayer.counts();
  const std::vector<double> times(counts.bookkeeping_ns.begin(), counts.bookkeeping_ns.end());
  const double total = std::accumulate(times.begin(), times.end(), 0.0);
  return {.policy = policy,
          .budget_bytes = budget.bytes,
          .hit_tokens = counts.hit_tokens,
          .host_hit_tokens = cache->counts().host_hit_tokens(),
          .file_hit_tokens = cache->counts().file_hit_tokens(),
          .token_hit_rate = counts.token_hit_rate(),
          .victims = cache->counts().victims,
          .metadata_bytes = cache->counts().metadata_bytes,
          .memory_moves = cache->counts().memory_moves,
          .bookkeeping_ns_p50 = quantile(times, 0.5),
          .bookkeeping_ns_mean = times.empty() ? 0 : total / static_cast<double>(times.size())};
}

std::vector<std::int64_t> columns(std::span<const SweepCell> cells) {
  std::vector<std::int64_t> budgets;
  for (const SweepCell& cell : cells)
    if (std::ranges::find(budgets, cell.budget_bytes) == budgets.end()) budgets.push_back(cell.budget_bytes);
  return budgets;
}

std::vector<PolicyKind> policies_of(std::span<const SweepCell> cells) {
  std::vector<PolicyKind> policies;
  for (const SweepCell& cell : cells)
    if (std::ranges::find(policies, cell.policy) == policies.end()) policies.push_back(cell.policy);
  return policies;
}

template <class Value>
std::string table_of(std::span<const SweepCell> cells, const char* title, Value&& value) {
  const std::vector<std::int64_t> budgets = columns(cells);
  std::string text = fmt::format("{:<24}", title);
  for (const std::int64_t budget : budgets) text += fmt::format("{:>14}", human_bytes(static_cast<double>(budget)));
  text += '\n';
  for (const PolicyKind policy : policies_of(cells)) {
    std::string row = fmt::format("  {:<22}", name(policy));
    for (const std::int64_t budget : budgets) {
      const auto cell = std::ranges::find_if(
          cells, [&](const SweepCell& c) { return c.policy == policy && c.budget_bytes == budget; });
      row += fmt::format("{:>14}", cell == cells.end() ? std::string("-") : value(*cell));
    }
    text += row + '\n';
  }
  return text;
}

}  // namespace

std::vector<SweepCell> sweep(const Workload& workload, std::int64_t requests, Budget budget,
                             std::span<const std::int64_t> budgets_bytes, std::span<const PolicyKind> policies,
                             const ComputeCost& cost, const std::function<bool()>& keep_going) {
  std::vector<SweepCell> cells;
  for (const std::int64_t bytes : budgets_bytes) {
    budget.bytes = bytes;
    for (const PolicyKind policy : policies) {
      const SweepCell cell = run_cell(workload, requests, budget, policy, cost, keep_going);
      if (!keep_going()) return cells;
      cells.push_back(cell);
    }
  }
  return cells;
}

std::string to_table(std::span<const SweepCell> cells) {
  return table_of(cells, "token hit %",
                  [](const SweepCell& c) { return fmt::format("{:.2f}", 100 * c.token_hit_rate); }) +
         table_of(cells, "hit tokens", [](const SweepCell& c) { return fmt::format("{}", c.hit_tokens); }) +
         table_of(cells, "victims", [](const SweepCell& c) { return fmt::format("{}", c.victims); }) +
         table_of(cells, "ns per request, p50",
                  [](const SweepCell& c) { return fmt::format("{:.0f}", c.bookkeeping_ns_p50); }) +
         table_of(cells, "metadata", [](const SweepCell& c) {
           return c.metadata_bytes == 0 ? std::string("-") : human_bytes(static_cast<double>(c.metadata_bytes));
         });
}

}  // namespace stateport::replay
