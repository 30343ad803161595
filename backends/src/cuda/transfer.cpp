// SPDX-License-Identifier: Apache-2.0
#include "../native_transfer.hpp"
#include "check.hpp"

namespace stateport::detail {
namespace {
cudaStream_t as_stream(const Stream& stream) noexcept {
  return static_cast<cudaStream_t>(stream.native());
}
}  // namespace

void enqueue_copy(const Stream& stream, void* dst, const void* src, std::size_t bytes) {
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, as_stream(stream)), "cudaMemcpyAsync");
}

void enqueue_fill(const Stream& stream, void* dst, std::byte value, std::size_t bytes) {
  check(cudaMemsetAsync(dst, std::to_integer<int>(value), bytes, as_stream(stream)), "cudaMemsetAsync");
}

}  // namespace stateport::detail
