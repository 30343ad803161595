// SPDX-License-Identifier: Apache-2.0
#include "fuzz_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

std::size_t bytes_max = 0;
std::size_t kept_bytes = 0;
void* kept_buffer = nullptr;
bool buffer_is_used = false;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes_max > 0 && bytes > bytes_max) return nullptr;
  bytes = std::max<std::size_t>(bytes, 1);
  if (alignment > alignof(std::max_align_t))
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (bytes != kept_bytes) return std::malloc(bytes);
  if (kept_buffer == nullptr) kept_buffer = std::malloc(bytes);
  return std::exchange(buffer_is_used, true) ? std::malloc(bytes) : kept_buffer;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_back(void* memory) noexcept {
  if (memory != nullptr && memory == kept_buffer) {
    buffer_is_used = false;
  } else {
    std::free(memory);
  }
}

}  // namespace

namespace stateport::fuzz {

void limit_allocations(std::size_t bytes) noexcept {
  bytes_max = bytes;
}
void keep_buffer_of(std::size_t bytes) noexcept {
  kept_bytes = bytes;
}

}  // namespace stateport::fuzz

void* operator new(std::size_t bytes) {
  return allocate_or_throw(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
// Those of sanitizers do not call the ones above.
void* operator new[](std::size_t bytes) {
  return allocate_or_throw(bytes, 1);
}
void operator delete[](void* memory) noexcept {
  give_back(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  give_back(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  give_back(memory);
}
