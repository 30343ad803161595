// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <span>

namespace stateport::replay {

struct SweepCell;

/// An array of objects with the members of SweepCell.
[[nodiscard]] nlohmann::ordered_json cells_json(std::span<const SweepCell> cells);

}  // namespace stateport::replay
