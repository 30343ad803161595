// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace stateport {

/// Why a request could not use all of the KV that it matched (or, for never_stored, all of its earlier prefix).
enum class LostHit : std::uint8_t {
  no_checkpoint,   ///< KV is there, but no state was stored at a usable boundary
  off_grid,        ///< the match ends between two boundaries of the grid
  evicted,         ///< a state was stored there and has been evicted
  too_few_tokens,  ///< using it would leave fewer tokens than the forward needs
  locked_pool,     ///< no live slot could be freed
  evicted_kv,      ///< its KV was cached and has been evicted
  /// No KV of this prefix is cached: no request has computed it, or it has been evicted and the cache does not remember
  /// it.
  never_stored,
  tier_costs_more,  ///< a tier below the device has it, and computing it is faster than loading it
  tier_failed,      ///< a tier had it, and did not deliver it as it should be
};
inline constexpr int lost_hit_count = 9;

[[nodiscard]] std::string_view name(LostHit reason) noexcept;

}  // namespace stateport
