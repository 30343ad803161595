// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>

#include "../host_memory.hpp"
#include "../native_device.hpp"

namespace stateport {

DeviceResource::DeviceResource() : device_id_(detail::device_in_use()) {}

void* DeviceResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  return detail::allocate_host("DeviceResource", bytes, alignment);
}

void DeviceResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream&) noexcept {
  detail::deallocate_host(memory, bytes, alignment);
}

const void* DeviceResource::do_identity() const noexcept {
  static constexpr char device_memory = 0;
  return &device_memory;
}

}  // namespace stateport
