// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/limit_resource.hpp>

#include <stateport/core/model/error.hpp>

namespace stateport {

void* LimitResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  std::size_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ - used) throw OutOfMemory("LimitResource", bytes, limit_bytes_ - used);
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  try {
    return upstream_->allocate(bytes, alignment, stream);
  } catch (...) {
    used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
}

void LimitResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                  const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace stateport
