// SPDX-License-Identifier: Apache-2.0
#include "fleet_run.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

namespace stateport::replay {
namespace {

constexpr std::size_t nodes_without_samples = 128;
constexpr std::size_t nodes_of_sample = 32;

std::size_t sample_nodes(const FleetArguments& fleet) {
  if (fleet.sample_nodes >= 0) return static_cast<std::size_t>(fleet.sample_nodes);
  return fleet.nodes > nodes_without_samples ? nodes_of_sample : 0;
}

FleetQuestion question_of(const Options& options, const StateSpec& full) {
  const FleetArguments& fleet = options.fleet;
  return {.nodes = fleet.nodes,
          .routes = fleet.routes,
          .node = make_budget(options, full, options.budget_bytes),
          .policy = options.policy,
          .cost = compute_cost(options.model),
          .remote_bytes = fleet.remote_bytes,
          .write_back = fleet.write_back,
          .load = fleet.load,
          .imbalance_tokens = fleet.imbalance_tokens,
          .event_delay_s = fleet.event_delay_s,
          .mean_life_s = fleet.mean_life_s,
          .down_s = fleet.down_s,
          .seed = options.generator.seed,
          .sample_nodes = sample_nodes(fleet),
          .samples = fleet.samples};
}

Workload first_requests(const Workload& workload, std::int64_t requests) {
  Workload first(workload.block_size_tokens());
  for (std::size_t i = 0; i < std::min(workload.size(), static_cast<std::size_t>(requests)); ++i)
    first.add(workload.request(i), workload.blocks(i));
  return first;
}

}  // namespace

FleetReport run_fleet(const Options& options, const LoadedWorkload& loaded, const StateSpec& full,
                      const std::function<bool()>& keep_going) {
  const auto begin = std::chrono::steady_clock::now();
  FleetReport report{
      .workload = loaded.name, .model = options.model, .question = question_of(options, full), .answers = {}};
  std::optional<Workload> first;
  if (options.requests_max > 0) first = first_requests(loaded.workload, options.requests_max);
  report.answers = ask_fleet(first ? *first : loaded.workload, report.question, keep_going);
  report.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace stateport::replay
