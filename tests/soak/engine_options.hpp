// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "combination.hpp"
#include "engine.hpp"

namespace stateport::soak {

using test::by_tokens;
using test::Combination;
using test::index_of;

/// The options of engine 0 or 1 of a world. Between them they use every order that learns, overlap, drafts, a store of
/// checkpoints of its own, budgets, write-through, events, both modes of columns. Engine 0 lives as long as the run,
/// engine 1 restarts over its files; where tiers are real, both do.
[[nodiscard]] EngineSetup engine_setup(Combination index, int number, bool is_real);

/// KV and states share one memory. In slots, without a budget.
void give_arena(RequestCacheOptions& options);

}  // namespace stateport::soak
