// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/transfer.hpp>

#include <stateport/core/model/error.hpp>

#include "native_transfer.hpp"
#include "stream_check.hpp"

#include <cstdint>

namespace stateport {

void copy_bytes(const Stream& stream, void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0 || (dst == src && dst != nullptr)) return;
  require(dst != nullptr, "dst", "nullptr", "must be memory when bytes > 0");
  require(src != nullptr, "src", "nullptr", "must be memory when bytes > 0");
  const auto to = reinterpret_cast<std::uintptr_t>(dst);
  const auto from = reinterpret_cast<std::uintptr_t>(src);
  require((to < from ? from - to : to - from) >= bytes, "bytes", bytes, "dst and src must not overlap");
  detail::require_usable(stream);
  detail::enqueue_copy(stream, dst, src, bytes);
}

void fill_bytes(const Stream& stream, void* dst, std::byte value, std::size_t bytes) {
  if (bytes == 0) return;
  require(dst != nullptr, "dst", "nullptr", "must be memory when bytes > 0");
  detail::require_usable(stream);
  detail::enqueue_fill(stream, dst, value, bytes);
}

}  // namespace stateport
