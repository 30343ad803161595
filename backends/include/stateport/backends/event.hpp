// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <utility>

namespace stateport {

/// A point in the work of one stream, to order another stream or the host after it:
///
///     event.record(producer);   // after all work that producer has enqueued so far
///     event.wait(consumer);     // work that consumer enqueues from now on runs after that point
///
/// An event that was never recorded counts as reached. Recording again moves the point. Move-only; a moved-from event
/// may only be destroyed or assigned to. Not thread-safe, other than query.
class Event {
 public:
  /// Throws BackendError unless a Runtime is alive, or when the vendor's runtime refuses.
  Event();
  ~Event();
  Event(Event&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }

  /// All of these throw BackendError when the vendor's runtime refuses, or when earlier work failed.
  void record(const Stream& stream);
  void wait(const Stream& stream) const;
  /// Waits on the host until the point is reached.
  void synchronize() const;
  /// Whether the point is reached; waits for nothing.
  [[nodiscard]] bool query() const;

  /// The cudaEvent_t or hipEvent_t; nullptr in an OpenMP build.
  [[nodiscard]] void* native() const noexcept { return native_; }

 private:
  void* native_ = nullptr;
};

/// Work enqueued on `later` from now on runs after all work that `earlier` has enqueued so far. Makes one event;
/// nothing when both are the same stream.
void order(const Stream& earlier, const Stream& later);

}  // namespace stateport
