// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/statistics_resource.hpp>

#include <algorithm>

namespace stateport {

MemoryStatistics StatisticsResource::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void StatisticsResource::reset_peak() {
  const std::lock_guard lock(mutex_);
  statistics_.peak_bytes = statistics_.live_bytes;
}

void* StatisticsResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
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

void StatisticsResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                       const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
  const std::lock_guard lock(mutex_);
  ++statistics_.deallocations;
  statistics_.live_bytes -= bytes;
}

}  // namespace stateport
