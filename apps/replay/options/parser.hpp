// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/options.hpp"

#include <optional>

namespace stateport::replay {

/// Reads the command line; without a command it is that of `prompts`. No value: --help was answered, or an error was
/// printed; `exit_code` tells which.
[[nodiscard]] std::optional<Command> parse_command(int argc, char** argv, int& exit_code);

}  // namespace stateport::replay
