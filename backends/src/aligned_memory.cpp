// SPDX-License-Identifier: Apache-2.0
#include "aligned_memory.hpp"

#include <cstdint>

namespace stateport::detail {

void* AlignedMemory::allocate(std::size_t bytes, std::size_t alignment, Allocate allocate, Deallocate deallocate) {
  void* base = allocate(bytes);
  if (reinterpret_cast<std::uintptr_t>(base) % alignment == 0) return base;
  deallocate(base);
  base = allocate(bytes + alignment - 1);  // no overflow: `bytes` was there a moment ago
  const std::size_t gap = (alignment - reinterpret_cast<std::uintptr_t>(base) % alignment) % alignment;
  if (gap == 0) return base;
  void* const memory = static_cast<std::byte*>(base) + gap;
  try {
    const std::lock_guard lock(mutex_);
    bases_[memory] = base;
  } catch (...) {
    deallocate(base);
    throw;
  }
  return memory;
}

void AlignedMemory::deallocate(void* memory, Deallocate deallocate) noexcept {
  void* base = memory;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = bases_.find(memory); found != bases_.end()) {
      base = found->second;
      bases_.erase(found);
    }
  }
  deallocate(base);
}

}  // namespace stateport::detail
