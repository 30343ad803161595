// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "suite.hpp"

#include <cstdint>
#include <string_view>

namespace stateport::conformance {

/// Throws std::runtime_error "field X = V must be in [low, high]" unless it is.
void require_in(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high);

/// Guarantees of the suites' data: each number of a suite's value is an integer in the range of its field, so that no
/// divisor is 0, no sum overflows, and no loop or array is huge. A field is the nearest key that is no number itself.
/// Throws as require_in. O(value).
void require_limits(std::string_view suite, const Json& value);

}  // namespace stateport::conformance
