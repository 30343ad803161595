// SPDX-License-Identifier: Apache-2.0
#include "../native_transfer.hpp"

#include <cstring>

namespace stateport::detail {

void enqueue_copy(const Stream&, void* dst, const void* src, std::size_t bytes) {
  std::memcpy(dst, src, bytes);
}

void enqueue_fill(const Stream&, void* dst, std::byte value, std::size_t bytes) {
  std::memset(dst, std::to_integer<int>(value), bytes);
}

}  // namespace stateport::detail
