// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/align_options.h>
#include <stateport/parts/align_planner.hpp>

#include <cstdint>

namespace stateport::c {

/// Throws for a number that is no stateport_align_mode.
[[nodiscard]] AlignMode align_mode_from_c(std::int32_t mode, const char* argument);

/// The options of a planner and of a context. Their constructors check them.
[[nodiscard]] AlignOptions read_align_options(const stateport_align_options* options);

}  // namespace stateport::c
