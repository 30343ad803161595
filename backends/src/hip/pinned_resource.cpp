// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/pinned_resource.hpp>

#include "../aligned_memory.hpp"
#include "../host_memory.hpp"
#include "../native_device.hpp"
#include "../stream_state.hpp"
#include "check.hpp"

#include <cstdint>

namespace stateport {
namespace {

// Never destroyed: memory may be given back by objects of static storage. One for all PinnedResources, as they are
// equal.
detail::AlignedMemory& pinned_memory() {
  static auto* const memory = new detail::AlignedMemory;
  return *memory;
}

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  // A size that no address space holds is not asked for: drivers answer that differently.
  const hipError_t status =
      bytes > PTRDIFF_MAX ? hipErrorOutOfMemory : hipHostMalloc(&memory, bytes, hipHostMallocDefault);
  if (status == hipErrorOutOfMemory) {
    static_cast<void>(hipGetLastError());
    throw OutOfMemory("PinnedResource", bytes, detail::free_host_bytes());
  }
  detail::check(status, "hipHostMalloc");
  return memory;
}

void deallocate_pinned(void* memory) {
  static_cast<void>(hipHostFree(memory));
}

}  // namespace

PinnedResource::PinnedResource() : device_id_(detail::device_in_use()) {}

void* PinnedResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  const detail::DeviceGuard guard(device_id_);
  return pinned_memory().allocate(bytes, alignment, allocate_pinned, deallocate_pinned);
}

void PinnedResource::do_deallocate(void* memory, std::size_t, std::size_t, const Stream& stream) noexcept {
  // hipHostFree is not documented to wait for work that still uses the memory. A stream that is
  // gone has ended its work.
  if (!stream.state().gone) static_cast<void>(hipStreamSynchronize(static_cast<hipStream_t>(stream.native())));
  pinned_memory().deallocate(memory, deallocate_pinned);
}

const void* PinnedResource::do_identity() const noexcept {
  return &pinned_memory();
}

}  // namespace stateport
