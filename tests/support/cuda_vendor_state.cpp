// SPDX-License-Identifier: Apache-2.0
#include "vendor_state.hpp"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace stateport::test {
namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace

int pending_error() {
  return static_cast<int>(cudaPeekAtLastError());
}
int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}
int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
void make_current(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace stateport::test
