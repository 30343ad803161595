// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace stateport::detail {

/// Aligned memory from a vendor's allocator that promises less (256 bytes). Most of its memory is aligned to far more;
/// where it is not, a larger piece is taken, and its base address is kept here until it is given back. Thread-safe.
class AlignedMemory {
 public:
  using Allocate = void* (*)(std::size_t bytes);
  using Deallocate = void (*)(void* memory);

  /// Throws as `allocate`.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, Allocate allocate, Deallocate deallocate);
  void deallocate(void* memory, Deallocate deallocate) noexcept;

 private:
  std::mutex mutex_;
  std::unordered_map<void*, void*> bases_;  ///< shifted address → address from the vendor's allocator
};

}  // namespace stateport::detail
