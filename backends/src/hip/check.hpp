// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include <hip/hip_runtime_api.h>

#include <string_view>

namespace stateport::detail {

/// Throws BackendError "<call>: <HIP's own text>" unless the call succeeded.
inline void check(hipError_t status, std::string_view call) {
  if (status == hipSuccess) return;
  static_cast<void>(hipGetLastError());  // HIP repeats an error to the next who asks: this one has been reported
  throw BackendError(call, hipGetErrorString(status));
}

/// Makes `device_id` the calling thread's current device, and the one before it afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device_id) {
    check(hipGetDevice(&previous_), "hipGetDevice");
    if (device_id == previous_) return;
    check(hipSetDevice(device_id), "hipSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(hipSetDevice(previous_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace stateport::detail
