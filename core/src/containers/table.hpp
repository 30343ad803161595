// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace stateport {

namespace detail {
/// Asks the system to back a large range with huge pages; small ranges and other systems: no effect.
void advise_huge_pages(void* memory, std::size_t bytes) noexcept;
}  // namespace detail

/// std::allocator whose blocks begin with a cache line, so that an entry of 16, 32 or 64 bytes lies in one, and whose
/// large blocks lie on huge pages. Tables of 10⁶ entries are read at random, and on 4 KiB pages nearly every read then
/// also misses the TLB, which under virtualisation costs more than the read itself.
template <class T>
struct TableAllocator : std::allocator<T> {
  static constexpr std::align_val_t alignment{std::max(alignof(T), std::size_t{64})};

  TableAllocator() noexcept = default;
  template <class Other>
  explicit(false) TableAllocator(const TableAllocator<Other>&) noexcept {}
  template <class Other>
  struct rebind {
    using other = TableAllocator<Other>;
  };

  [[nodiscard]] T* allocate(std::size_t count) {
    void* const memory = ::operator new(count * sizeof(T), alignment);
    detail::advise_huge_pages(memory, count * sizeof(T));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t /*count*/) noexcept { ::operator delete(memory, alignment); }
};

/// A vector that is read at random: one entry per block, slot, node or candidate.
template <class T>
using Table = std::vector<T, TableAllocator<T>>;

}  // namespace stateport
