// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/model/error.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace stateport::test {

/// For tests: passes calls to an upstream resource, but fails chosen ones as if memory were exhausted. To inject a
/// fault at each allocation in turn, run with fail_at(1), fail_at(2), … until `failures()` stays 0.
class FailingResource final : public MemoryResource {
 public:
  /// `upstream` must outlive this. Fails nothing until fail_at is called.
  explicit FailingResource(MemoryResource& upstream) noexcept : upstream_(&upstream) {}

  /// The `call`-th allocate from now on (1 = the next) and the `count - 1` after it throw OutOfMemory{bytes, 0}. Sets
  /// calls() and failures() to 0. Throws InvalidArgument for call == 0.
  void fail_at(std::uint64_t call, std::uint64_t count = 1);
  /// Fails nothing any more. Sets calls() and failures() to 0.
  void fail_never() noexcept;

  [[nodiscard]] std::uint64_t calls() const noexcept;     ///< allocate calls since the last fail_at or fail_never
  [[nodiscard]] std::uint64_t failures() const noexcept;  ///< how many of them failed here

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return upstream_->kind(); }

  MemoryResource* upstream_;
  mutable std::mutex mutex_;
  std::uint64_t first_ = 0;  ///< 0: none
  std::uint64_t count_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t failures_ = 0;
};

inline void FailingResource::fail_at(std::uint64_t call, std::uint64_t count) {
  require(call > 0, "call", call, "must be 1 or more: calls are counted from 1");
  const std::lock_guard lock(mutex_);
  first_ = call;
  count_ = count;
  calls_ = failures_ = 0;
}

inline void FailingResource::fail_never() noexcept {
  const std::lock_guard lock(mutex_);
  first_ = count_ = 0;
  calls_ = failures_ = 0;
}

inline std::uint64_t FailingResource::calls() const noexcept {
  const std::lock_guard lock(mutex_);
  return calls_;
}

inline std::uint64_t FailingResource::failures() const noexcept {
  const std::lock_guard lock(mutex_);
  return failures_;
}

inline void* FailingResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    ++calls_;
    if (calls_ >= first_ && calls_ - first_ < count_) {
      ++failures_;
      throw OutOfMemory("FailingResource", bytes, 0);
    }
  }
  return upstream_->allocate(bytes, alignment, stream);
}

inline void FailingResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                           const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
}

}  // namespace stateport::test
