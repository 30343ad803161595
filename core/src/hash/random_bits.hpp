// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport::detail {

/// Returns 64 bits of the operating system's random number generator. Throws BackendError if the system has none.
/// Thread-safe. std::random_device is not used: gcc's static library calls a function of glibc 2.36 for it, and wheels
/// are made for older ones.
[[nodiscard]] std::uint64_t random_bits();

}  // namespace stateport::detail
