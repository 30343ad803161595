// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

namespace stateport {

/// Ordinary host memory. All HostResources are equal. Neither call waits for the stream: give host memory back only
/// when no work on a device uses it any more.
class HostResource final : public MemoryResource {
 public:
  struct Options {
    /// Advises the system to back allocations of 4 MiB and more with huge pages: for pools of states on a CPU. Linux;
    /// elsewhere, and where the system has them switched off, it changes nothing. Pages still come with first touch.
    bool huge_pages = false;
  };

  HostResource() = default;
  explicit HostResource(const Options& options) : huge_pages_(options.huge_pages) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return MemoryKind::host; }
  const void* do_identity() const noexcept override;

  bool huge_pages_ = false;
};

}  // namespace stateport
