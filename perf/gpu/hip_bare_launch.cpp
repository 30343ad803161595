// SPDX-License-Identifier: Apache-2.0
#include "bare_launch.hpp"

#include <hip/hip_runtime.h>

#include <stdexcept>

namespace stateport::perf {
namespace {
__global__ void bare_kernel(const BareArguments) {}
}  // namespace

void launch_bare(const Stream& stream, const BareArguments& arguments) {
  bare_kernel<<<1, 256, 0, static_cast<hipStream_t>(stream.native())>>>(arguments);
  const hipError_t error = hipGetLastError();
  if (error != hipSuccess) throw std::runtime_error(hipGetErrorString(error));
}

}  // namespace stateport::perf
