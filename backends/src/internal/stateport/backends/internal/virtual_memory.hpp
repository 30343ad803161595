// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace stateport::detail {

/// The system's calls that reserve addresses and put physical memory behind them; one source per vendor, src/<vendor>.
/// Tests have one that refuses calls. ElasticMemory makes the calls from one thread at a time.
class VirtualMemory {
 public:
  using Status = int;            ///< 0: done. Otherwise the call was refused, and has changed nothing
  using Handle = std::uint64_t;  ///< physical memory of one granule; never UINT64_MAX

  VirtualMemory() = default;
  virtual ~VirtualMemory();
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  /// The smallest granule: a power of two.
  [[nodiscard]] virtual std::size_t granularity() const noexcept = 0;
  /// Whether one call of `unmap` takes any run of granules, or one granule alone.
  [[nodiscard]] virtual bool unmaps_runs() const noexcept = 0;

  /// Addresses at a multiple of `alignment`, a power of two, without memory.
  [[nodiscard]] virtual Status reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept = 0;
  /// Gives addresses back that have no memory any more.
  virtual void free(void* address, std::size_t bytes) noexcept = 0;

  /// Physical memory of one granule of `bytes`.
  [[nodiscard]] virtual Status create(std::size_t bytes, Handle& handle) noexcept = 0;
  virtual void release(Handle handle) noexcept = 0;

  /// Puts a handle's memory behind one granule, which has none. The device cannot use it before `allow`.
  [[nodiscard]] virtual Status map(void* address, std::size_t bytes, Handle handle) noexcept = 0;
  /// Lets the device read and write a run of granules that are all mapped.
  [[nodiscard]] virtual Status allow(void* address, std::size_t bytes) noexcept = 0;
  /// Takes the memory away from mapped granules. Their handles keep it.
  [[nodiscard]] virtual Status unmap(void* address, std::size_t bytes) noexcept = 0;

  /// The system's text for a refusal.
  [[nodiscard]] virtual std::string text(Status refusal) const = 0;
};

/// That of the build's device. Throws BackendError where the device has no such memory.
[[nodiscard]] std::unique_ptr<VirtualMemory> native_virtual_memory(int device_id);

}  // namespace stateport::detail
