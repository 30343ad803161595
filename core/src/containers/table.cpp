// SPDX-License-Identifier: Apache-2.0
#include "containers/table.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace stateport::detail {

void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#ifdef __linux__
  // Advice: whether it is taken changes speed alone.
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
#endif
}

}  // namespace stateport::detail
