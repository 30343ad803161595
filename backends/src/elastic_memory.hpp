// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/virtual_memory.hpp>
#include <stateport/backends/memory_range.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace stateport::detail {

/// The bookkeeping of an ElasticResource, one for all vendors: which granule of which reservation has which handle, and
/// which handles are free. The state of a granule is `unmapped`, or the handle behind it. A call that the system
/// refuses is undone by the calls against it. Thread-safe.
class ElasticMemory {
 public:
  ElasticMemory(std::unique_ptr<VirtualMemory> calls, std::size_t limit_bytes, std::size_t granularity_bytes);
  ~ElasticMemory();
  ElasticMemory(const ElasticMemory&) = delete;
  ElasticMemory& operator=(const ElasticMemory&) = delete;

  [[nodiscard]] std::size_t granularity() const noexcept { return granule_; }
  [[nodiscard]] std::size_t limit_bytes() const noexcept { return limit_; }
  [[nodiscard]] std::size_t mapped_bytes() const noexcept;
  [[nodiscard]] std::size_t held_bytes() const noexcept;

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment);
  void deallocate(void* memory) noexcept;
  /// `bytes` rounded up to whole granules.
  [[nodiscard]] std::size_t reserved_bytes(std::size_t bytes) const noexcept;

  [[nodiscard]] bool map(std::span<const MemoryRange> ranges);
  void unmap(std::span<const MemoryRange> ranges);
  [[nodiscard]] bool is_mapped(const MemoryRange& range) const;
  void trim() noexcept;

 private:
  using Handle = VirtualMemory::Handle;
  using Status = VirtualMemory::Status;
  static constexpr Handle unmapped = UINT64_MAX;

  struct Reservation {
    std::unique_ptr<Handle[]> handles;  ///< one for each granule
    std::size_t granules = 0;
  };
  /// The granules of one range.
  struct Run {
    std::byte* address;
    std::span<Handle> handles;
  };

  [[nodiscard]] Run find(const MemoryRange& range) const;
  [[nodiscard]] std::size_t require_ranges(std::span<const MemoryRange> ranges, bool mapped) const;
  [[nodiscard]] bool create_until(std::size_t count) noexcept;
  void release_until(std::size_t count) noexcept;

  [[nodiscard]] bool map_run(Run run, bool& clean) noexcept;
  [[nodiscard]] bool take_back(Run run) noexcept;
  [[nodiscard]] Status unmap_run(Run run) noexcept;
  void restore(Run run) noexcept;
  void set_free(Handle& handle) noexcept;
  [[nodiscard]] std::size_t drop_run(Run run) noexcept;

  std::unique_ptr<VirtualMemory> calls_;
  std::size_t limit_;
  std::size_t granule_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Reservation> reservations_;  ///< by their first address
  std::size_t reserved_ = 0;                            ///< granules of all reservations
  std::size_t mapped_ = 0;                              ///< granules with memory
  std::vector<Handle> free_;                            ///< memory behind no granule; room for all granules
};

}  // namespace stateport::detail
