// SPDX-License-Identifier: Apache-2.0
// Commands that make no state.
#include "report/fleet_report.hpp"
#include "report/json.hpp"
#include "report/sizing.hpp"
#include "report/sweep.hpp"
#include "runs/run_setup.hpp"

#include <fmt/format.h>

#include <chrono>

namespace stateport::replay {
namespace {

constexpr std::size_t nodes_without_samples = 128;
constexpr std::size_t nodes_of_sample = 32;

std::size_t sample_nodes(const FleetRunOptions& fleet) {
  if (fleet.sample_nodes >= 0) return static_cast<std::size_t>(fleet.sample_nodes);
  return fleet.nodes > nodes_without_samples ? nodes_of_sample : 0;
}

FleetQuestion question_of(const FleetRunOptions& options, const RunInput& input) {
  return {.nodes = options.nodes,
          .routes = options.routes,
          .node = make_budget(input, options.memory),
          .policy = options.memory.policy,
          .cost = compute_cost(input.model.name),
          .remote_bytes = options.remote_bytes,
          .write_back = options.write_back,
          .load = options.load,
          .imbalance_tokens = options.imbalance_tokens,
          .event_delay_s = options.event_delay_s,
          .mean_life_s = options.mean_life_s,
          .down_s = options.down_s,
          .schedule = options.schedule,
          .seed = options.common.workload.generator.seed,
          .sample_nodes = sample_nodes(options),
          .samples = options.samples};
}

}  // namespace

int run(const SweepOptions& options) {
  OutputFile json(options.common.json_file);
  const RunInput input = read_input("sweep", options.common);
  SweepReport report{
      .cells = sweep(input.workload, input.requests, make_budget(input, {.bytes = 1, .division = options.division}),
                     options.memory_bytes, policies_of(options.cache), compute_cost(input.model.name), keep_going),
      .requests = input.requests};
  report.interrupted = report.cells.size() < options.memory_bytes.size() * policies_of(options.cache).size();
  for (std::size_t i = 0; i < static_cast<std::size_t>(input.requests); ++i)
    report.input_tokens += input.workload.request(i).input_tokens;
  fmt::print("{} requests, {} input tokens{}\n{}", report.requests, report.input_tokens,
             report.interrupted ? " (interrupted: the memories and policies so far)" : "", to_table(report.cells));
  json.write(to_json(input.run, report));
  return report.interrupted ? exit_interrupted : 0;
}

int run(const SizeOptions& options) {
  OutputFile json(options.common.json_file);
  const RunInput input = read_input("size", options.common);
  const Sizing sizing = size_cache(input.workload, input.requests, make_budget(input, options.memory),
                                   options.memory.policy, compute_cost(input.model.name), keep_going);
  if (!keep_going()) return exit_interrupted;
  fmt::print("{}", to_text(sizing));
  json.write(to_json(input.run, sizing));
  return 0;
}

int run(const FleetRunOptions& options) {
  OutputFile json(options.common.json_file);
  const RunInput input = read_input("fleet", options.common);
  const auto begin = std::chrono::steady_clock::now();
  FleetReport report{.run = input.run, .question = question_of(options, input), .answers = {}};
  const Workload workload = input.workload.first(static_cast<std::size_t>(input.requests));
  report.answers = ask_fleet(workload, report.question, keep_going);
  report.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (report.answers.empty()) return exit_interrupted;
  fmt::print("{}", to_text(report));
  json.write(to_json(report));
  return 0;
}

}  // namespace stateport::replay
