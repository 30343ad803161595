// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// What a target wants of operator new. Its executable links fuzz_memory.cpp.
namespace stateport::fuzz {

/// Larger allocations throw std::bad_alloc; 0: none does. Callers may ask for more than memory has, and that must be
/// answered as such after any allocation.
void limit_allocations(std::size_t bytes) noexcept;
/// One buffer of exactly so many bytes is kept and handed out again. A sanitizer maps and unmaps large ones, which
/// takes longer than what is tested.
void keep_buffer_of(std::size_t bytes) noexcept;

}  // namespace stateport::fuzz
