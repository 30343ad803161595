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
  const cudaError_t status = bytes > PTRDIFF_MAX ? cudaErrorMemoryAllocation : cudaMallocHost(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw OutOfMemory("PinnedResource", bytes, detail::free_host_bytes());
  }
  detail::check(status, "cudaMallocHost");
  return memory;
}

void deallocate_pinned(void* memory) {
  static_cast<void>(cudaFreeHost(memory));
}

}  // namespace

PinnedResource::PinnedResource() : device_id_(detail::device_in_use()) {}

void* PinnedResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  const detail::DeviceGuard guard(device_id_);
  return pinned_memory().allocate(bytes, alignment, allocate_pinned, deallocate_pinned);
}

void PinnedResource::do_deallocate(void* memory, std::size_t, std::size_t, const Stream& stream) noexcept {
  // cudaFreeHost is not documented to wait for work that still uses the memory. A stream that is
  // gone has ended its work.
  if (!stream.state().gone) static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.native())));
  pinned_memory().deallocate(memory, deallocate_pinned);
}

const void* PinnedResource::do_identity() const noexcept {
  return &pinned_memory();
}

}  // namespace stateport
