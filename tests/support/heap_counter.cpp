// SPDX-License-Identifier: Apache-2.0
#include "heap_counter.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t allocations = 0;
}

std::uint64_t stateport::test::heap_allocations() noexcept {
  return allocations;
}

// operator new[] and the nothrow forms end here too; the aligned forms are left alone.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
