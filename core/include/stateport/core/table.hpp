// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace stateport {

namespace detail {
/// Asks the system to back a large range with huge pages; small ranges and other systems: no effect.
void advise_huge_pages(void* memory, std::size_t bytes) noexcept;
}  // namespace detail

/// std::allocator whose large blocks lie on huge pages. Tables of 10⁶ entries are read at random, and on 4 KiB pages
/// nearly every read then also misses the TLB, which under virtualisation costs more than the read itself.
template <class T>
struct TableAllocator : std::allocator<T> {
  TableAllocator() noexcept = default;
  template <class Other>
  explicit(false) TableAllocator(const TableAllocator<Other>&) noexcept {}
  template <class Other>
  struct rebind {
    using other = TableAllocator<Other>;
  };

  [[nodiscard]] T* allocate(std::size_t count) {
    T* const memory = std::allocator<T>::allocate(count);
    detail::advise_huge_pages(memory, count * sizeof(T));
    return memory;
  }
};

/// A vector that is read at random: one entry per block, slot, node or candidate.
template <class T>
using Table = std::vector<T, TableAllocator<T>>;

}  // namespace stateport
