// SPDX-License-Identifier: Apache-2.0
#include "heap_counter.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t allocations = 0;
thread_local std::uint64_t of_memory = 0;
thread_local std::uint64_t until_failure = 0;
thread_local bool later_fail = false;
thread_local bool exhausted = false;
std::atomic<std::size_t> spared_bytes = 0;

bool fails(std::size_t bytes) noexcept {
  if (bytes == spared_bytes && bytes > 0) return false;
  if (until_failure > 0 && --until_failure == 0) {
    exhausted = later_fail;
    return true;
  }
  return exhausted;
}
}  // namespace

std::uint64_t stateport::test::heap_allocations() noexcept {
  return allocations;
}

std::uint64_t stateport::test::memory_allocations() noexcept {
  return of_memory;
}

void stateport::test::fail_heap_allocation(std::uint64_t n, bool and_later) noexcept {
  until_failure = n;
  later_fail = and_later;
  exhausted = false;
}

void stateport::test::spare_heap_allocations_of(std::size_t bytes) noexcept {
  spared_bytes = bytes;
}

stateport::test::SparedAllocations::SparedAllocations() noexcept
    : allocations_(allocations), until_failure_(until_failure), exhausted_(exhausted) {
  until_failure = 0;
  exhausted = false;
}

stateport::test::SparedAllocations::~SparedAllocations() {
  allocations = allocations_;
  until_failure = until_failure_;
  exhausted = exhausted_;
}

// operator new[] ends here too, but for sanitizers, which have their own.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (fails(bytes)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  if (fails(bytes)) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  if (fails(bytes)) throw std::bad_alloc();
  if (void* memory = operator new(bytes, alignment, std::nothrow)) return memory;
  throw std::bad_alloc();
}
// HostResource's: memory of states, not of structures.
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  ++of_memory;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
