// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/align_options.h>
#include <stateport/core/align/align_planner.hpp>

namespace stateport::c {

/// What a planner and a context are made of. Their constructors check it.
[[nodiscard]] AlignOptions read_align_options(const stateport_align_options* options);

}  // namespace stateport::c
