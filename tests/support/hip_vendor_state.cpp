// SPDX-License-Identifier: Apache-2.0
#include "vendor_state.hpp"

#include <hip/hip_runtime.h>

#include <stdexcept>
#include <string>

namespace stateport::test {
namespace {

void require_success(hipError_t error, const char* call) {
  if (error != hipSuccess) throw std::runtime_error(std::string(call) + ": " + hipGetErrorString(error));
}

}  // namespace

int pending_error() {
  return static_cast<int>(hipPeekAtLastError());
}
int device_count() {
  int count = 0;
  require_success(hipGetDeviceCount(&count), "hipGetDeviceCount");
  return count;
}
int current_device() {
  int device = 0;
  require_success(hipGetDevice(&device), "hipGetDevice");
  return device;
}
void make_current(int device) {
  require_success(hipSetDevice(device), "hipSetDevice");
}

}  // namespace stateport::test
