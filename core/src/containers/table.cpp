// SPDX-License-Identifier: Apache-2.0
#include "containers/table.hpp"

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace stateport::detail {

void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __linux__
  constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
  constexpr std::uintptr_t page_bytes = 4096;  // madvise wants the start of a page; larger pages refuse harmlessly
  if (bytes < 2 * huge_page_bytes) return;     // smaller ranges may hold no whole huge page
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(memory) + page_bytes - 1) / page_bytes * page_bytes;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page_bytes * page_bytes;
  // Advice: whether it is taken changes speed alone.
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
}

}  // namespace stateport::detail
