// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/tier_options.hpp>

#include "caches/policy_kind.hpp"
#include "fleet/router.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace CLI {
class App;
}

namespace stateport::replay {

/// What the command line says of many machines.
struct FleetArguments {
  std::size_t nodes = 0;  ///< 0: one replay, without simulated time
  std::int64_t remote_bytes = 0;
  std::vector<Route> routes = {Route::round_robin, Route::session, Route::prefix};
  bool write_back = false;
  double load = 1;
  std::int64_t imbalance_tokens = 65'536;
  double event_delay_s = 0;
  double mean_life_s = 0;  ///< 0: no node fails
  double down_s = 0;
  std::int64_t sample_nodes = -1;  ///< 0: all nodes; -1: not said
  std::int32_t samples = 8;

  [[nodiscard]] bool wanted() const noexcept { return nodes > 0; }
};

/// The options of a fleet become options of the program. `speeds` are told of the link.
void add_fleet_arguments(CLI::App& app, FleetArguments& fleet, TierSpeeds& speeds);
/// Throws CLI::ValidationError for what means nothing without a fleet or with one, or is missing. `disk_folder`: the
/// files of a node would be written.
void check_fleet_arguments(const CLI::App& app, const FleetArguments& fleet, PolicyKind policy, bool disk_folder);

}  // namespace stateport::replay
