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

/// Makes the compiler work out `value` although nobody uses it: a lookup made for its cache misses alone.
inline void keep([[maybe_unused]] std::size_t value) noexcept {
#ifdef __GNUC__
  asm volatile("" : : "r"(value));
#endif
}

}  // namespace stateport::detail
