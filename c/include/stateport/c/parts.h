// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_PARTS_H
#define STATEPORT_C_PARTS_H

/// Planners for engines that keep their own cache: stateport::parts. A request cache uses none of them. They need no
/// device, are in stateport::c_core, and keep to the conventions of stateport/c/core.h.
#include <stateport/c/align_planner.h>  // IWYU pragma: export
#include <stateport/c/checkpoints.h>    // IWYU pragma: export
#include <stateport/c/image_cache.h>    // IWYU pragma: export
#include <stateport/c/router_index.h>   // IWYU pragma: export

#endif
