// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/device_calls.hpp>

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"
#include "check.hpp"

#include <Kokkos_Core.hpp>

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

MemoryPlace native_place_of(const void* memory) {
  hipPointerAttribute_t known{};
  const hipError_t status = hipPointerGetAttributes(&known, memory);
  if (status != hipSuccess) static_cast<void>(hipGetLastError());
  if (status == hipErrorInvalidValue) known.type = hipMemoryTypeUnregistered;  // HIP knows nothing of pageable memory
  if (status != hipSuccess && status != hipErrorInvalidValue) return {};
  if (known.type == hipMemoryTypeDevice) return {.kind = MemoryPlace::Kind::device, .device_id = known.device};
  return {.kind =
              known.type == hipMemoryTypeUnregistered ? MemoryPlace::Kind::pageable_host : MemoryPlace::Kind::anywhere};
}

bool reaches_pageable_memory() {
  int reaches = 0;
  check(hipDeviceGetAttribute(&reaches, hipDeviceAttributePageableMemoryAccess, device_in_use()),
        "hipDeviceGetAttribute");
  return reaches != 0;
}

int device_of_stream(void* native) {
  const DeviceGuard guard(device_in_use());  // the default streams are of the current device
  hipDevice_t device_id = -1;
  check(hipStreamGetDevice(static_cast<hipStream_t>(native), &device_id), "hipStreamGetDevice");
  return device_id;
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
