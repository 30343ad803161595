// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/pinned_resource.hpp>

#include "../host_memory.hpp"
#include "../native_device.hpp"

namespace stateport {

PinnedResource::PinnedResource() : device_id_(detail::device_in_use()) {}

void* PinnedResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  return detail::allocate_host("PinnedResource", bytes, alignment);
}

void PinnedResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream&) noexcept {
  detail::deallocate_host(memory, bytes, alignment);
}

const void* PinnedResource::do_identity() const noexcept {
  static constexpr char pinned_memory = 0;
  return &pinned_memory;
}

}  // namespace stateport
