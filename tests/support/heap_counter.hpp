// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace stateport::test {

/// Calls of operator new by this thread so far. The library stateport_heap_counter replaces operator new.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

/// Of those with an alignment that do not throw, which are counted here alone: memory of states, of an OpenMP build's
/// resources.
[[nodiscard]] std::uint64_t memory_allocations() noexcept;

/// Makes the n-th call of operator new by this thread from now on throw std::bad_alloc, once; 0 = none. `and_later`:
/// and all calls after it, until the next call of this.
void fail_heap_allocation(std::uint64_t n, bool and_later = false) noexcept;

/// Allocations of this size fail never, in any thread; 0 = none.
void spare_heap_allocations_of(std::size_t bytes) noexcept;

/// While it lives, allocations of this thread neither fail nor count: for a test's own work within a call.
class SparedAllocations {
 public:
  SparedAllocations() noexcept;
  SparedAllocations(const SparedAllocations&) = delete;
  SparedAllocations& operator=(const SparedAllocations&) = delete;
  ~SparedAllocations();

 private:
  std::uint64_t allocations_;
  std::uint64_t until_failure_;
  bool exhausted_;
};

/// Runs `body(attempt)` with its first allocation failing, then its second, and so on until it runs through. `body`
/// contains nothing but the calls that may fail; `after(attempt)` checks the state that a failure leaves. Returns the
/// number of failures, which is the number of allocations of `body`.
template <class Body, class After>
std::uint64_t fail_each_allocation(Body&& body, After&& after) {
  for (std::uint64_t attempt = 1;; ++attempt) {
    bool failed = false;
    fail_heap_allocation(attempt);
    try {
      body(attempt);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    fail_heap_allocation(0);
    after(attempt);
    if (!failed) return attempt - 1;
  }
}

}  // namespace stateport::test
