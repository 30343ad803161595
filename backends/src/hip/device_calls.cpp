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
  hipStreamCaptureStatus capture = hipStreamCaptureStatusNone;
  const hipError_t status = hipStreamIsCapturing(static_cast<hipStream_t>(stream.native()), &capture);
  if (status == hipErrorStreamCaptureImplicit) {  // the legacy default stream, while one that waits for it captures
    static_cast<void>(hipGetLastError());
    return true;
  }
  check(status, "hipStreamIsCapturing");
  return capture != hipStreamCaptureStatusNone;
}

void require_reachable(const void* memory, const char* argument) {
  hipPointerAttribute_t known{};
  const hipError_t status = hipPointerGetAttributes(&known, memory);
  if (status != hipSuccess) static_cast<void>(hipGetLastError());
  if (status == hipErrorInvalidValue) known.type = hipMemoryTypeUnregistered;  // HIP knows nothing of pageable memory
  if (status != hipSuccess && status != hipErrorInvalidValue) return;
  const int device_id = device_in_use();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (known.type == hipMemoryTypeDevice)
    require(known.device == device_id, argument, address,
            fmt::format("is memory of device {}, and device {} is in use", known.device, device_id));
  if (known.type != hipMemoryTypeUnregistered) return;  // pinned and managed memory are reachable
  int reads_pageable = 0;
  check(hipDeviceGetAttribute(&reads_pageable, hipDeviceAttributePageableMemoryAccess, device_id),
        "hipDeviceGetAttribute");
  require(reads_pageable != 0, argument, address, "is pageable memory of the host, which the device cannot reach");
}

int compute_units() {
  int units = 0;
  check(hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device_in_use()), "hipDeviceGetAttribute");
  return units;
}

void wait_for_device() noexcept {
  if (!Kokkos::is_initialized()) return;
  try {
    const DeviceGuard guard(device_in_use());
    static_cast<void>(hipDeviceSynchronize());
  } catch (...) {
    // Whatever is wrong with the device, nothing of it runs any more.
  }
}

LaunchScope::LaunchScope() : error_before_(static_cast<int>(hipPeekAtLastError())) {
  detail::check(hipGetDevice(&device_before_), "hipGetDevice");
}
LaunchScope::~LaunchScope() {
  int device_now = device_before_;
  if (hipGetDevice(&device_now) == hipSuccess && device_now != device_before_)
    static_cast<void>(hipSetDevice(device_before_));
}
void LaunchScope::check(const char* label) const {
  if (error_before_ == hipSuccess) detail::check(hipPeekAtLastError(), label);
}

}  // namespace stateport::detail
