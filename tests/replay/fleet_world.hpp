// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/fleet_study.hpp"
#include "sizes.hpp"
#include "workload/generator.hpp"

#include <cstdint>

namespace stateport::replay::test {

/// Nodes with a device for some ten prompts, and fast links.
inline FleetQuestion small_fleet(std::size_t nodes, Route route) {
  return {.nodes = nodes,
          .routes = {route},
          .node = {.bytes = 4 * gib,
                   .state_bytes = 77'266'944,
                   .kv_bytes_per_token = 24'576,
                   .block_size_tokens = 512,
                   .speeds = {.tokens_per_s = 20'000, .remote_bytes_per_s = 25e9, .remote_latency_s = 2e-5}}};
}

inline Workload made_up(WorkloadKind kind, std::int64_t requests, std::uint64_t seed = 1) {
  return generate_workload({.kind = kind, .requests = requests, .block_size_tokens = 512, .seed = seed});
}

/// Of the whole fleet, with its invariants checked.
inline FleetCounts run_fleet(const Workload& workload, const FleetQuestion& question) {
  const Crowd crowd = make_crowd(workload, find_conversations(workload), {.load = question.load});
  Fleet fleet(crowd, fleet_options(question, crowd, question.routes.front()));
  fleet.run([](std::int64_t) { return true; });
  fleet.check_invariants();
  return fleet.counts();
}

}  // namespace stateport::replay::test
