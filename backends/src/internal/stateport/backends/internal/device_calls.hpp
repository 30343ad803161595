// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_checks.hpp>
#include <stateport/backends/stream.hpp>

/// Calls of the kernels to the vendor's runtime around their launches; one source per vendor, src/<vendor>.
namespace stateport::detail {

/// Whether the stream records a graph. Work that is enqueued then runs at every replay: a copy from memory of the host
/// would read it as it is at that time, and nothing may be waited for.
[[nodiscard]] bool is_capturing(const Stream& stream);

/// Multiprocessors or compute units of the device in use.
[[nodiscard]] int compute_units();

/// Waits until all work of the device in use is done. Without effect when none is in use. For memory that goes away
/// while streams of an engine, which may be gone already, could still use it.
void wait_for_device() noexcept;

/// Around one launch. Kokkos makes the device in use the thread's current one, and does not look whether the vendor's
/// runtime took the launch.
class LaunchScope {
 public:
  LaunchScope();
  /// The thread's current device is the former one again.
  ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

  /// Throws BackendError "<label>: <the vendor's own text>" when the launch was refused. An earlier error that was not
  /// queried before the launch is left to a later query.
  void check(const char* label) const;

 private:
  [[maybe_unused]] int device_before_ = -1;
  [[maybe_unused]] int error_before_ = 0;
};

/// An OpenMP build captures no graph, refuses no launch and has one device. Tests of the other cases pretend them.
struct Pretence {
  bool captures = false;
  bool refuses_launches = false;
  MemoryPlace memory;      ///< where all memory lies
  int stream_device = 0;   ///< the device that all streams were made on
  bool work_runs = false;  ///< no event is reached before somebody waits for one
};
[[nodiscard]] Pretence& pretence() noexcept;

}  // namespace stateport::detail
