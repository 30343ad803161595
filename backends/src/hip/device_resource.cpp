// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>

#include "../aligned_memory.hpp"
#include "../native_device.hpp"
#include "../stream_state.hpp"
#include "check.hpp"

#include <cstdint>

namespace stateport {
namespace {

// Never destroyed: memory may be given back by objects of static storage. One for all DeviceResources, as they are
// equal.
detail::AlignedMemory& device_memory() {
  static auto* const memory = new detail::AlignedMemory;
  return *memory;
}

std::size_t free_device_bytes() noexcept {
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  return hipMemGetInfo(&free_bytes, &all_bytes) == hipSuccess ? free_bytes : 0;
}

void* allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  // A size that no address space holds is not asked for: drivers answer that differently.
  const hipError_t status = bytes > PTRDIFF_MAX ? hipErrorOutOfMemory : hipMalloc(&memory, bytes);
  if (status == hipErrorOutOfMemory) {
    static_cast<void>(hipGetLastError());
    throw OutOfMemory("DeviceResource", bytes, free_device_bytes());
  }
  detail::check(status, "hipMalloc");
  return memory;
}

void deallocate_device(void* memory) {
  static_cast<void>(hipFree(memory));
}

}  // namespace

DeviceResource::DeviceResource() : device_id_(detail::device_in_use()) {}

void* DeviceResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  const detail::DeviceGuard guard(device_id_);
  return device_memory().allocate(bytes, alignment, allocate_device, deallocate_device);
}

void DeviceResource::do_deallocate(void* memory, std::size_t, std::size_t, const Stream& stream) noexcept {
  // hipFree is not documented to wait for work that still uses the memory. A stream that is
  // gone has ended its work.
  if (!stream.state().gone) static_cast<void>(hipStreamSynchronize(static_cast<hipStream_t>(stream.native())));
  device_memory().deallocate(memory, deallocate_device);
}

const void* DeviceResource::do_identity() const noexcept {
  return &device_memory();
}

}  // namespace stateport
