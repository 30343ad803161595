// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The counts of a batch, read where an engine keeps them: AlignPlanner reads host memory so, AlignContext the
/// device's.
namespace stateport {

/// Arrays of one batch. Each is indexed by batch row or, where marked, by request slot.
struct BatchCounts {
  const std::int32_t* computed = nullptr;
  const std::int32_t* scheduled = nullptr;        ///< [rows]; nullptr: query_start_loc is read
  const std::int32_t* query_start_loc = nullptr;  ///< [rows + 1] tokens of the batch before each row, and of all rows
  const std::int32_t* drafts = nullptr;           ///< nullptr: none
  bool computed_by_request = false;
  bool drafts_by_request = false;

  [[nodiscard]] constexpr std::int32_t computed_of(std::int32_t row, std::int32_t request) const noexcept {
    return computed[computed_by_request ? request : row];
  }
  /// A difference of query_start_loc that has no 32 bits is the nearest number that has.
  [[nodiscard]] constexpr std::int32_t scheduled_of(std::int32_t row) const noexcept {
    if (scheduled != nullptr) return scheduled[row];
    const std::int64_t tokens = std::int64_t{query_start_loc[row + 1]} - query_start_loc[row];
    if (tokens < INT32_MIN) return INT32_MIN;
    return tokens > INT32_MAX ? INT32_MAX : static_cast<std::int32_t>(tokens);
  }
  [[nodiscard]] constexpr std::int32_t drafts_of(std::int32_t row, std::int32_t request) const noexcept {
    return drafts != nullptr ? drafts[drafts_by_request ? request : row] : 0;
  }
};

}  // namespace stateport
