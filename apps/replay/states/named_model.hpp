// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/models.hpp>

#include <string>

namespace stateport::replay {

/// The row of the catalogue with this name, or else the model of a config.json: `name` is its path, or that of its
/// folder. Throws InvalidArgument as models::info for a name that is neither, and std::runtime_error with the path for
/// a file that cannot be read and one that models::from_config refuses.
[[nodiscard]] models::ModelInfo named_model(const std::string& name);

}  // namespace stateport::replay
