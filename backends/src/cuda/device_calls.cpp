// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/device_calls.hpp>

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"
#include "check.hpp"

#include <Kokkos_Core.hpp>
#include <cuda.h>

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

MemoryPlace native_place_of(const void* memory) {
  cudaPointerAttributes known{};
  if (cudaPointerGetAttributes(&known, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  if (known.type == cudaMemoryTypeDevice) return {.kind = MemoryPlace::Kind::device, .device_id = known.device};
  return {.kind = known.type == cudaMemoryTypeUnregistered ? MemoryPlace::Kind::pageable_host
                                                           : MemoryPlace::Kind::anywhere};
}

bool reaches_pageable_memory() {
  int reaches = 0;
  check(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, device_in_use()), "cudaDeviceGetAttribute");
  return reaches != 0;
}

int device_of_stream(void* native) {
  // The runtime tells it from CUDA 12.8 on; the driver, with which Kokkos is linked, always has.
  const DeviceGuard guard(device_in_use());  // the default streams are of the current device
  CUcontext context = nullptr;
  CUdevice device_id = -1;
  const bool asked = cuStreamGetCtx(static_cast<CUstream>(native), &context) == CUDA_SUCCESS &&
                     cuCtxPushCurrent(context) == CUDA_SUCCESS;
  const bool answered = asked && cuCtxGetDevice(&device_id) == CUDA_SUCCESS;
  if (asked) static_cast<void>(cuCtxPopCurrent(&context));
  if (!answered) throw BackendError("cuStreamGetCtx", "the driver does not know the stream");
  return device_id;
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
