// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include "options.hpp"
#include "report/fleet_report.hpp"
#include "run_setup.hpp"

#include <functional>

namespace stateport::replay {

/// Simulates the fleet that the options describe. `full`: a state of the model. Without answers: `keep_going` said
/// false, which is asked between requests. Throws as make_budget and ask_fleet.
[[nodiscard]] FleetReport run_fleet(const Options& options, const LoadedWorkload& loaded, const StateSpec& full,
                                    const std::function<bool()>& keep_going);

}  // namespace stateport::replay
