// SPDX-License-Identifier: Apache-2.0
#include "../native_transfer.hpp"
#include "check.hpp"

namespace stateport::detail {
namespace {
hipStream_t as_stream(const Stream& stream) noexcept {
  return static_cast<hipStream_t>(stream.native());
}
}  // namespace

void enqueue_copy(const Stream& stream, void* dst, const void* src, std::size_t bytes) {
  check(hipMemcpyAsync(dst, src, bytes, hipMemcpyDefault, as_stream(stream)), "hipMemcpyAsync");
}

void enqueue_fill(const Stream& stream, void* dst, std::byte value, std::size_t bytes) {
  check(hipMemsetAsync(dst, std::to_integer<int>(value), bytes, as_stream(stream)), "hipMemsetAsync");
}

}  // namespace stateport::detail
