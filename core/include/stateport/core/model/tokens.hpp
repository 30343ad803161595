// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport {

using Token = std::int32_t;    ///< a token id; any value
using KvIndex = std::int32_t;  ///< where the KV of one token lives; >= 0

}  // namespace stateport
