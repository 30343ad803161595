// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace stateport::engine {

inline constexpr std::size_t vocabulary = 48;
inline constexpr std::size_t hidden_size = 16;
using Hidden = std::array<float, hidden_size>;

}  // namespace stateport::engine
