// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include <cuda_runtime_api.h>

#include <string_view>

namespace stateport::detail {

/// Throws BackendError "<call>: <CUDA's own text>" unless the call succeeded.
inline void check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // CUDA repeats an error to the next who asks: this one has been reported
  throw BackendError(call, cudaGetErrorString(status));
}

/// Makes `device_id` the calling thread's current device, and the one before it afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device_id) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device_id == previous_) return;
    check(cudaSetDevice(device_id), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(cudaSetDevice(previous_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace stateport::detail
