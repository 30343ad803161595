// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/options.hpp"

/// The commands of stateport-replay. Each reads the workload, prints its results, writes the files that were asked for,
/// and returns the exit code of the program. Each throws an exception of the library or std::runtime_error for a run
/// that cannot be done, before it has printed anything.
namespace stateport::replay {

[[nodiscard]] int run(const PromptsOptions& options);
[[nodiscard]] int run(const ServeOptions& options);
[[nodiscard]] int run(const BudgetOptions& options);
[[nodiscard]] int run(const SweepOptions& options);
[[nodiscard]] int run(const SizeOptions& options);
[[nodiscard]] int run(const FleetRunOptions& options);

/// Makes the first Ctrl-C end the replay after the current request; a second one ends the program.
void interrupt_gently();
/// Whether there was no Ctrl-C yet.
[[nodiscard]] bool keep_going() noexcept;

}  // namespace stateport::replay
