// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

namespace stateport {

/// Page-locked host memory that the build's device reads and writes at its own address (cudaMallocHost, hipHostMalloc;
/// ordinary host memory in an OpenMP build): the host side of asynchronous copies. Both calls may take milliseconds
/// and wait for the device: meant for a few large buffers that live long. Neither may be called while a stream is
/// captured into a graph. All PinnedResources are equal.
class PinnedResource final : public MemoryResource {
 public:
  /// Throws BackendError unless a Runtime has started the device.
  PinnedResource();

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return MemoryKind::pinned_host; }
  const void* do_identity() const noexcept override;

  [[maybe_unused]] int device_id_;  ///< in use when this was made
};

}  // namespace stateport
