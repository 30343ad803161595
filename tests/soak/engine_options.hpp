// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine.hpp"

namespace stateport::soak {

/// The options of engine 0 or 1 of a world. Between them they use every order that learns, overlap, drafts, a store of
/// checkpoints of its own, budgets, write-through, events, both ways of index align. Engine 0 lives as long as the run,
/// engine 1 restarts over its files; where tiers are real, both do.
[[nodiscard]] EngineSetup engine_setup(CacheIndex index, int number, bool is_real);

}  // namespace stateport::soak
