// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace stateport::test {

/// Counts of a StatisticsResource since its construction. Zero-byte calls are not counted.
struct MemoryStatistics {
  std::size_t live_bytes = 0;       ///< asked for and not given back
  std::size_t peak_bytes = 0;       ///< largest live_bytes so far
  std::uint64_t allocations = 0;    ///< calls that gave memory
  std::uint64_t deallocations = 0;  ///< calls that gave it back
  std::uint64_t failed_calls = 0;   ///< calls that upstream answered with an exception

  [[nodiscard]] std::uint64_t live_allocations() const noexcept { return allocations - deallocations; }
};

/// Passes every call to an upstream resource and counts it.
class StatisticsResource final : public MemoryResource {
 public:
  /// `upstream` must outlive this.
  explicit StatisticsResource(MemoryResource& upstream) noexcept : upstream_(&upstream) {}

  [[nodiscard]] MemoryStatistics statistics() const;
  /// peak_bytes starts again from live_bytes.
  void reset_peak();

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return upstream_->kind(); }

  MemoryResource* upstream_;
  mutable std::mutex mutex_;
  MemoryStatistics statistics_;
};

inline MemoryStatistics StatisticsResource::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

inline void StatisticsResource::reset_peak() {
  const std::lock_guard lock(mutex_);
  statistics_.peak_bytes = statistics_.live_bytes;
}

inline void* StatisticsResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  void* memory = nullptr;
  try {
    memory = upstream_->allocate(bytes, alignment, stream);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    ++statistics_.failed_calls;
    throw;
  }
  const std::lock_guard lock(mutex_);
  ++statistics_.allocations;
  statistics_.live_bytes += bytes;
  statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.live_bytes);
  return memory;
}

inline void StatisticsResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                              const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
  const std::lock_guard lock(mutex_);
  ++statistics_.deallocations;
  statistics_.live_bytes -= bytes;
}

}  // namespace stateport::test
