// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/fleet_study.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace stateport::replay {

/// What a fleet was asked, and what it did.
struct FleetReport {
  std::string workload;  ///< file and format, or kind and seed
  std::string model;
  FleetQuestion question;
  std::vector<FleetAnswer> answers;
  double wall_s = 0;
};

/// A row for each figure, a column for each route.
[[nodiscard]] std::string to_text(const FleetReport& report);
[[nodiscard]] std::string to_json(const FleetReport& report);
/// One self-contained page that fetches nothing: plots, each above a table of its numbers, which are those of to_json.
[[nodiscard]] std::string to_html(const FleetReport& report);

}  // namespace stateport::replay
