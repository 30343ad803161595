// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"
#include "report/sizing.hpp"
#include "report/sweep.hpp"

#include <span>
#include <string>

/// All that stateport-replay writes for programs; --help names the keys.
namespace stateport::replay {

/// One object.
[[nodiscard]] std::string to_json(const Report& report);
/// An array of objects with the members of SweepCell.
[[nodiscard]] std::string to_json(std::span<const SweepCell> cells);
/// One object.
[[nodiscard]] std::string to_json(const Sizing& sizing);

}  // namespace stateport::replay
