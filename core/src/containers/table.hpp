// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace stateport {

namespace detail {
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
/// Asks the system to back a range that begins with a huge page by huge pages; other systems: no effect.
void advise_huge_pages(void* memory, std::size_t bytes) noexcept;
}  // namespace detail

/// std::allocator whose blocks begin with a cache line, so that an entry of 16, 32 or 64 bytes lies in one, and whose
/// large blocks lie on huge pages. Tables of 10⁶ entries are read at random, and on 4 KiB pages nearly every read then
/// also misses the TLB, which under virtualisation costs more than the read itself.
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
    if (count > count_max) throw std::bad_array_new_length();
    const std::size_t bytes = bytes_of(count);
    void* const memory = ::operator new(bytes, alignment(bytes));
    if (bytes >= detail::huge_page_bytes) detail::advise_huge_pages(memory, bytes);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept { ::operator delete(memory, alignment(bytes_of(count))); }

 private:
  /// No address space holds this number, and bytes_of() does not overflow below it.
  static constexpr std::size_t count_max = PTRDIFF_MAX / 2 / sizeof(T);

  /// With the rest of a huge page that is nearly full: on small pages it would be the slow part of the table.
  [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t count) noexcept {
    const std::size_t bytes = count * sizeof(T);
    const std::size_t rest = -bytes % detail::huge_page_bytes;
    return rest <= bytes / 8 ? bytes + rest : bytes;
  }
  [[nodiscard]] static constexpr std::align_val_t alignment(std::size_t bytes) noexcept {
    constexpr std::size_t cache_line_bytes = 64;
    return std::align_val_t{bytes >= detail::huge_page_bytes ? detail::huge_page_bytes
                                                             : std::max(alignof(T), cache_line_bytes)};
  }
};

/// A vector that is read at random: one entry per block, slot, node or candidate.
template <class T>
using Table = std::vector<T, TableAllocator<T>>;

}  // namespace stateport
