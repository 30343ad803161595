// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/fleet_study.hpp"
#include "report/report.hpp"

#include <string>
#include <vector>

namespace stateport::replay {

/// The question to a fleet, and its answers.
struct FleetReport {
  RunDescription run;  ///< the workload and the model
  FleetQuestion question;
  std::vector<FleetAnswer> answers;
  double wall_s = 0;
};

/// A row for each figure, a column for each route.
[[nodiscard]] std::string to_text(const FleetReport& report);

}  // namespace stateport::replay
