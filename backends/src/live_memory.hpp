// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Debug and sanitizer builds remember each live allocation of each resource, so that memory given back wrongly is
/// found at once. Elsewhere nothing is remembered, and nothing is checked.
namespace stateport::detail {

void note_allocated(const void* identity, void* memory, std::size_t bytes, std::size_t alignment) noexcept;
/// False, with nothing changed, unless exactly this was allocated and is live.
bool note_deallocated(const void* identity, void* memory, std::size_t bytes, std::size_t alignment) noexcept;
[[nodiscard]] bool has_live_memory(const void* identity) noexcept;

}  // namespace stateport::detail
