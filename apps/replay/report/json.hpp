// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/fleet_report.hpp"
#include "report/report.hpp"
#include "report/sizing.hpp"
#include "report/sweep.hpp"

#include <string>

/// The results of stateport-replay for programs, one object each; docs/replay.md explains the keys.
/// stateport-report draws them, and has no other input.
namespace stateport::replay {

[[nodiscard]] std::string to_json(const Report& report);
[[nodiscard]] std::string to_json(const FleetReport& report);
/// `run`: the workload and the model.
[[nodiscard]] std::string to_json(const RunDescription& run, const SweepReport& sweep);
[[nodiscard]] std::string to_json(const RunDescription& run, const Sizing& sizing);

}  // namespace stateport::replay
