// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport::detail {

/// The longest prefix whose state is cached as the block of a column.
struct StateHit {
  std::int64_t tokens = 0;          ///< 0: no hit
  std::int32_t column = no_column;  ///< holds state@tokens; every column before it stays null
  friend constexpr bool operator==(const StateHit&, const StateHit&) noexcept = default;
};

/// The last column k with (k + 1) * block <= max_tokens and a multiple of `alignment` for which is_cached(k). Asks from
/// the end, so a hit near the end costs little. O(max_tokens / block). Precondition: block > 0, alignment > 0.
template <class IsCached>
[[nodiscard]] constexpr StateHit longest_state_hit(std::int64_t max_tokens, std::int64_t block, std::int64_t alignment,
                                                   IsCached&& is_cached) {
  for (std::int64_t tokens = floor_to(max_tokens, block); tokens > 0; tokens -= block) {
    if (tokens % alignment != 0) continue;
    const auto column = static_cast<std::int32_t>(floor_div(tokens, block) - 1);
    if (is_cached(column)) return {tokens, column};
  }
  return {};
}

}  // namespace stateport::detail
