// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/callback_resource.hpp>

#include <stateport/backends/internal/device_checks.hpp>
#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <cstdint>

namespace stateport {

CallbackResource::CallbackResource(const Callbacks& callbacks) : callbacks_(callbacks) {
  require(callbacks.allocate != nullptr, "allocate", "nullptr", "must be a function");
  require(callbacks.deallocate != nullptr, "deallocate", "nullptr", "must be a function");
}

void* CallbackResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  void* const memory = callbacks_.allocate(bytes, alignment, stream.native(), callbacks_.context);
  if (memory == nullptr) throw OutOfMemory("CallbackResource", bytes, 0);
  if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) {
    do_deallocate(memory, bytes, alignment, stream);
    throw BackendError("CallbackResource", fmt::format("the engine's memory is not aligned to {} bytes", alignment));
  }
  if (kind() == MemoryKind::device) {
    try {
      detail::require_device_in_use(memory, "allocate");
    } catch (...) {
      do_deallocate(memory, bytes, alignment, stream);
      throw;
    }
  }
  return memory;
}

void CallbackResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                     const Stream& stream) noexcept {
  callbacks_.deallocate(memory, bytes, alignment, stream.native(), callbacks_.context);
}

}  // namespace stateport
