// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/host_resource.hpp>

#include <stateport/core/model/error.hpp>

#include "host_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace stateport {
namespace detail {

std::size_t free_host_bytes() noexcept {
  const long pages = ::sysconf(_SC_AVPHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages < 0 || page_bytes < 0 ? 0 : static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
}

void* allocate_host(std::string_view resource, std::size_t bytes, std::size_t alignment) {
  // Above PTRDIFF_MAX allocators differ in how they refuse, and rounding up to the alignment could overflow.
  void* const memory = bytes > static_cast<std::size_t>(PTRDIFF_MAX) - alignment
                           ? nullptr
                           : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
  if (memory == nullptr) throw OutOfMemory(resource, bytes, free_host_bytes());
  return memory;
}

void deallocate_host(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
  ::operator delete (memory, bytes, std::align_val_t{alignment});
}

}  // namespace detail

namespace {

/// Advice covers whole huge pages inside of the allocation alone, so that a neighbour's pages stay as they are.
void advise_huge_pages([[maybe_unused]] std::byte* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
  if (bytes < 2 * huge_page_bytes) return;
  const std::size_t gap =
      (huge_page_bytes - reinterpret_cast<std::uintptr_t>(memory) % huge_page_bytes) % huge_page_bytes;
  // Advice that is refused costs speed, not memory: it is no error.
  (void)::madvise(memory + gap, (bytes - gap) / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* HostResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  void* const memory = detail::allocate_host("HostResource", bytes, alignment);
  if (huge_pages_) advise_huge_pages(static_cast<std::byte*>(memory), bytes);
  return memory;
}

void HostResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream&) noexcept {
  detail::deallocate_host(memory, bytes, alignment);
}

const void* HostResource::do_identity() const noexcept {
  static constexpr char host = 0;
  return &host;
}

}  // namespace stateport
