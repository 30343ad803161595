// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport::test {

/// Calls of operator new by this thread so far. Link support/heap_counter.cpp, which replaces operator new.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

}  // namespace stateport::test
