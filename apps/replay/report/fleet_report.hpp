// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/fleet_study.hpp"
#include "report/report.hpp"

#include <span>
#include <string>
#include <vector>

namespace stateport::replay {

/// How a figure of a fleet is shown to people.
struct FleetRow {
  const char* name;   ///< of the figure
  const char* label;  ///< in words, with the unit; indented under the label that it completes
  double scale = 1;   ///< of the value
  int decimals = 2;
};

/// One for each figure.
[[nodiscard]] std::span<const FleetRow> fleet_rows() noexcept;

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
