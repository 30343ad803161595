// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <cstdint>

/// What the library asks of the vendor's runtime around its launches; one source per vendor, src/<vendor>. The checks
/// are in src/device_checks.cpp.
namespace stateport::detail {

/// Whether the stream records a graph. What is enqueued then runs at every replay: a copy from memory of the host would
/// read it as it is at that time, and nothing may be waited for.
[[nodiscard]] bool is_capturing(const Stream& stream);

/// What the vendor's runtime knows of where memory lies.
struct MemoryPlace {
  enum class Kind : std::uint8_t {
    anywhere,      ///< pinned, managed or unknown: taken as every device's
    device,        ///< of one device
    pageable_host  ///< ordinary memory of the host
  };
  Kind kind = Kind::anywhere;
  int device_id = -1;  ///< of memory of one device
};
[[nodiscard]] MemoryPlace place_of(const void* memory);
/// Whether kernels of the device in use may read and write pageable memory of the host.
[[nodiscard]] bool reaches_pageable_memory();
/// The device that a native stream was made on.
[[nodiscard]] int device_of_stream(void* native);

/// Throws InvalidArgument, naming both devices, for memory of another device than the one in use.
void require_device_in_use(const void* memory, const char* argument);
/// The same for a native stream.
void require_stream_in_use(void* native);
/// Throws InvalidArgument for memory that kernels of the device in use cannot reach: that of another device, and
/// pageable memory of the host unless the device reads it.
void require_reachable(const void* memory, const char* argument);

/// Multiprocessors or compute units of the device in use.
[[nodiscard]] int compute_units();

/// Waits until all work of the device in use is done. Without effect when none is in use. For what goes away while
/// streams of an engine, which may be gone already, could still use it.
void wait_for_device() noexcept;

/// Around one launch. Kokkos makes the device in use the thread's current one, and does not look whether the vendor's
/// runtime took the launch.
class LaunchScope {
 public:
  LaunchScope();
  /// The thread's current device is again what it was.
  ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

  /// Throws BackendError "<label>: <the vendor's own text>" when the launch was refused. An error that nobody had asked
  /// about before the launch is left to those who will.
  void check(const char* label) const;

 private:
  int device_before_ = -1;
  int error_before_ = 0;
};

/// An OpenMP build captures no graph, refuses no launch and has one device. Tests of what the library does otherwise
/// pretend it.
struct Pretence {
  bool captures = false;
  bool refuses_launches = false;
  MemoryPlace memory;     ///< where all memory lies
  int stream_device = 0;  ///< what all streams were made on
};
[[nodiscard]] Pretence& pretence() noexcept;

}  // namespace stateport::detail
