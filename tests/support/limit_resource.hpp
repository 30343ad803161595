// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/model/error.hpp>

#include <atomic>
#include <cstddef>

namespace stateport::test {

/// Passes calls to an upstream resource while the bytes asked for and not given back stay within a budget.
class LimitResource final : public MemoryResource {
 public:
  /// `upstream` must outlive this.
  LimitResource(MemoryResource& upstream, std::size_t limit_bytes) noexcept
      : upstream_(&upstream), limit_bytes_(limit_bytes) {}

  [[nodiscard]] std::size_t limit_bytes() const noexcept { return limit_bytes_; }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  /// Throws OutOfMemory{bytes, limit - used} when the budget does not hold `bytes`.
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return upstream_->kind(); }

  MemoryResource* upstream_;
  std::size_t limit_bytes_;
  std::atomic<std::size_t> used_bytes_{0};
};

inline void* LimitResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  std::size_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_bytes_ - used) throw OutOfMemory("LimitResource", bytes, limit_bytes_ - used);
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  try {
    return upstream_->allocate(bytes, alignment, stream);
  } catch (...) {
    used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
}

inline void LimitResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                         const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace stateport::test
