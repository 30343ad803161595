// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/failing_resource.hpp>

#include <stateport/core/model/error.hpp>

namespace stateport {

void FailingResource::fail_at(std::uint64_t call, std::uint64_t count) {
  require(call > 0, "call", call, "must be 1 or more: calls are counted from 1");
  const std::lock_guard lock(mutex_);
  first_ = call;
  count_ = count;
  calls_ = failures_ = 0;
}

void FailingResource::fail_never() noexcept {
  const std::lock_guard lock(mutex_);
  first_ = count_ = 0;
  calls_ = failures_ = 0;
}

std::uint64_t FailingResource::calls() const noexcept {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::uint64_t FailingResource::failures() const noexcept {
  const std::lock_guard lock(mutex_);
  return failures_;
}

void* FailingResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
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

void FailingResource::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment,
                                    const Stream& stream) noexcept {
  upstream_->deallocate(memory, bytes, alignment, stream);
}

}  // namespace stateport
