// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace stateport {

/// Which columns keep their states after the request has passed them.
struct RetentionPolicy {
  /// Distance of the kept columns in tokens, counted from the start of the sequence. 0: only the named boundaries are
  /// kept; not set, or at most one block: all columns are.
  std::optional<std::int64_t> interval_tokens;

  [[nodiscard]] constexpr bool keeps_all(std::int64_t block) const noexcept {
    return !interval_tokens || (*interval_tokens > 0 && floor_div(*interval_tokens, block) <= 1);
  }
  [[nodiscard]] constexpr bool keeps_interval(std::int64_t column, std::int64_t block) const noexcept {
    if (keeps_all(block)) return true;
    return *interval_tokens > 0 && (column + 1) % floor_div(*interval_tokens, block) == 0;
  }
};

/// keep[i] = 1 iff column start_column + i is kept: by the policy, or because it ends at or last before one of
/// `boundaries` (tokens; forks and ends of prompts). Any size of `keep`. O(columns + boundaries). Precondition:
/// block > 0, start_column >= 0, and columns end where 64 bits can count them.
constexpr void fill_retention_mask(const RetentionPolicy& policy, std::int64_t block, std::int64_t start_column,
                                   std::span<const std::int64_t> boundaries, std::span<std::uint8_t> keep) noexcept {
  const auto columns = static_cast<std::int64_t>(keep.size());
  for (std::int64_t i = 0; i < columns; ++i)
    keep[static_cast<std::size_t>(i)] = policy.keeps_interval(start_column + i, block);
  for (const std::int64_t boundary : boundaries) {
    if (boundary < block) continue;
    const std::int64_t column = floor_div(boundary, block) - 1 - start_column;
    if (column >= 0 && column < columns) keep[static_cast<std::size_t>(column)] = 1;
  }
}

}  // namespace stateport
