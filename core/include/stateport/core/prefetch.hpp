// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace stateport::detail {

/// How many loop turns ahead a random access is fetched: about as many misses as a core has in flight.
inline constexpr std::size_t prefetch_distance = 8;

/// A hint without effect on results; any address is allowed.
inline void prefetch([[maybe_unused]] const void* address) noexcept {
#ifdef __GNUC__
  __builtin_prefetch(address);
#endif
}

}  // namespace stateport::detail
