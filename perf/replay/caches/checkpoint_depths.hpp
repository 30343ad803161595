// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace stateport::replay {

[[nodiscard]] std::string_view name(CheckpointPlacement placement) noexcept;

/// At which depths a prompt of n full blocks leaves states, given its p and j (see Hit): fills `depths`, ascending and
/// without duplicates: of the reference, and what tests hold RequestCache against. Depths that the request already
/// found a state at (<= p) need none. Precondition: not `passes`.
void choose_depths(CheckpointPlacement placement, std::int32_t hit_blocks, std::int32_t matched_blocks,
                   std::int32_t full_blocks, std::vector<std::int32_t>& depths);

/// Most states that `requests` requests over `distinct_blocks` different blocks can leave: a pool of this size never
/// evicts.
[[nodiscard]] std::int64_t states_max(CheckpointPlacement placement, std::int64_t requests,
                                      std::int64_t distinct_blocks) noexcept;

}  // namespace stateport::replay
