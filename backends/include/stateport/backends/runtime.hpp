// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device.hpp>

namespace stateport {

/// Starts the build's backend and keeps it usable. Make one before any Stream, device memory or kernel; several in one
/// process, made and destroyed in any order and by any thread, are fine.
///
/// An engine that runs Kokkos itself keeps it: then a Runtime neither starts nor finalizes it. A Kokkos that a Runtime
/// has started is finalized once, when the program ends, because Kokkos cannot start twice in a process; finalize()
/// does it earlier. A context that the engine made on the device (cudaSetDevice, PyTorch) is used as it is.
class Runtime {
 public:
  static constexpr int any_device = -1;

  struct Options {
    /// Index into devices(). any_device: the device in use, or the calling thread's current device.
    int device_id = any_device;
    /// Host threads of an OpenMP build; 0: as many as OpenMP uses (OMP_NUM_THREADS). Ignored when Kokkos runs already.
    int host_threads = 0;
  };

  Runtime() : Runtime(Options{}) {}
  /// Throws, with nothing started:
  /// - BackendError "CUDA device 0: no device found" when there is no device or no driver, and when this build has no
  ///   code for the device's architecture;
  /// - InvalidArgument for a device_id that is no device, or another device than the one in use, and for
  ///   host_threads < 0;
  /// - BackendError after Kokkos was finalized in this process.
  explicit Runtime(const Options& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The device in use.
  [[nodiscard]] const DeviceInfo& device() const noexcept { return device_; }

  /// Whether streams and kernels can be used now: a Runtime or the engine has started Kokkos.
  [[nodiscard]] static bool is_running() noexcept;
  /// Finalizes Kokkos if a Runtime has started it, never if an engine has. No Runtime can be made after that. Throws
  /// InvalidState while a Runtime is alive.
  static void finalize();

 private:
  DeviceInfo device_;
};

}  // namespace stateport
