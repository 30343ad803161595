// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace stateport::replay {

/// At which depths a request leaves states, given its p, j and n (see Hit; n: full blocks of the prompt).
enum class CheckpointMode : std::uint8_t {
  every,   ///< all depths in (p, n]
  last,    ///< n
  branch,  ///< n, and where the request left the shared prefix: j, if j > p
  rungs    ///< those, and n - 4, n - 2 and n - 1 if > j: for the next request, which shares all but the last blocks
};

[[nodiscard]] std::string_view name(CheckpointMode mode) noexcept;

/// Fills `depths`, ascending and without duplicates; depths that the request already found a state at (<= p) need none.
void choose_depths(CheckpointMode mode, std::int32_t hit_blocks, std::int32_t matched_blocks, std::int32_t full_blocks,
                   std::vector<std::int32_t>& depths);

/// Most states that `requests` requests over `distinct_blocks` different blocks can leave: a pool of this size never
/// evicts.
[[nodiscard]] std::int64_t states_max(CheckpointMode mode, std::int64_t requests,
                                      std::int64_t distinct_blocks) noexcept;

}  // namespace stateport::replay
