// SPDX-License-Identifier: Apache-2.0
#include "vendor_state.hpp"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace stateport::test {
namespace {

void require_success(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace

int pending_error() {
  return static_cast<int>(cudaPeekAtLastError());
}
int device_count() {
  int count = 0;
  require_success(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}
int current_device() {
  int device = 0;
  require_success(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
void make_current(int device) {
  require_success(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace stateport::test
