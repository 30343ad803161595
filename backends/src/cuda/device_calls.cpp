// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/device_calls.hpp>

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"
#include "check.hpp"

#include <Kokkos_Core.hpp>
#include <fmt/format.h>

#include <cstdint>

namespace stateport::detail {

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native()), &capture);
  if (status == cudaErrorStreamCaptureImplicit) {  // the legacy default stream, while one that waits for it captures
    static_cast<void>(cudaGetLastError());
    return true;
  }
  check(status, "cudaStreamIsCapturing");
  return capture != cudaStreamCaptureStatusNone;
}

void require_reachable(const void* memory, const char* argument) {
  cudaPointerAttributes known{};
  if (cudaPointerGetAttributes(&known, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  const int device_id = device_in_use();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (known.type == cudaMemoryTypeDevice)
    require(known.device == device_id, argument, address,
            fmt::format("is memory of device {}, and device {} is in use", known.device, device_id));
  if (known.type != cudaMemoryTypeUnregistered) return;  // pinned and managed memory are reachable
  int reads_pageable = 0;
  check(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, device_id), "cudaDeviceGetAttribute");
  require(reads_pageable != 0, argument, address, "is pageable memory of the host, which the device cannot reach");
}

int compute_units() {
  int units = 0;
  check(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device_in_use()), "cudaDeviceGetAttribute");
  return units;
}

void wait_for_device() noexcept {
  if (!Kokkos::is_initialized()) return;
  try {
    const DeviceGuard guard(device_in_use());
    static_cast<void>(cudaDeviceSynchronize());
  } catch (...) {
    // Whatever is wrong with the device, nothing of it runs any more.
  }
}

LaunchScope::LaunchScope() : error_before_(static_cast<int>(cudaPeekAtLastError())) {
  detail::check(cudaGetDevice(&device_before_), "cudaGetDevice");
}
LaunchScope::~LaunchScope() {
  int device_now = device_before_;
  if (cudaGetDevice(&device_now) == cudaSuccess && device_now != device_before_)
    static_cast<void>(cudaSetDevice(device_before_));
}
void LaunchScope::check(const char* label) const {
  if (error_before_ == cudaSuccess) detail::check(cudaPeekAtLastError(), label);
}

}  // namespace stateport::detail
