// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace stateport::detail {

/// The memory that the operating system has left; 0 when it does not say.
[[nodiscard]] std::size_t free_host_bytes() noexcept;

/// Host memory from the C++ heap. Throws OutOfMemory naming `resource`.
[[nodiscard]] void* allocate_host(std::string_view resource, std::size_t bytes, std::size_t alignment);
void deallocate_host(void* memory, std::size_t bytes, std::size_t alignment) noexcept;

}  // namespace stateport::detail
