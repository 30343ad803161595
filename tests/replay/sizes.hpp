// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport::replay::test {

inline constexpr std::int64_t mib = std::int64_t{1} << 20;
inline constexpr std::int64_t gib = mib << 10;

}  // namespace stateport::replay::test
