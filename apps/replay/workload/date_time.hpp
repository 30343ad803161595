// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stateport::replay {

/// Milliseconds since the beginning of 1970 in UTC, rounded down, of YYYY-MM-DD HH:MM:SS[.fraction][Z|±HH[[:]MM]]. A T
/// may stand for the blank. Without an offset the time is UTC. No value: the text has another form, there is no such
/// time, or it was before 1970.
[[nodiscard]] std::optional<std::int64_t> parse_date_time(std::string_view text) noexcept;

}  // namespace stateport::replay
