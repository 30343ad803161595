// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Controls operator new for a target, whose executable links fuzz_memory.cpp.
namespace stateport::fuzz {

/// Larger allocations throw std::bad_alloc; 0: none does. Callers may ask for more than memory has, and that must be
/// answered as such after any allocation.
void limit_allocations(std::size_t bytes) noexcept;
/// Keeps one buffer of exactly `bytes` bytes and hands it out again. A sanitizer maps and unmaps large buffers, which
/// takes longer than the tested call.
void keep_buffer_of(std::size_t bytes) noexcept;

}  // namespace stateport::fuzz
