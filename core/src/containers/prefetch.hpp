// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace stateport::detail {

/// How many loop turns ahead a random access is fetched: about as many misses as a core has in flight.
inline constexpr std::size_t prefetch_distance = 16;

/// A hint without effect on results; any address is allowed.
inline void prefetch([[maybe_unused]] const void* address) noexcept {
#ifdef __GNUC__
  __builtin_prefetch(address);
#endif
}

/// The same for memory that is needed many accesses later. It goes to the second cache alone: the first has few misses
/// in flight at a time, and memory that waits in it may be driven out again.
inline void prefetch_early([[maybe_unused]] const void* address) noexcept {
#ifdef __GNUC__
  __builtin_prefetch(address, 0, 2);
#endif
}

/// body(0) … body(count - 1); each index is given to `fetch` some turns before.
template <class Fetch, class Body>
void for_each_prefetched(std::size_t count, Fetch&& fetch, Body&& body) {
  for (std::size_t i = 0; i < count && i < prefetch_distance; ++i) fetch(i);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + prefetch_distance < count) fetch(i + prefetch_distance);
    body(i);
  }
}

}  // namespace stateport::detail
