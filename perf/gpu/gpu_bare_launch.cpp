// SPDX-License-Identifier: Apache-2.0
#include "bare_launch.hpp"

#include <cuda_runtime.h>

#include <stdexcept>

namespace stateport::perf {
namespace {
__global__ void bare_kernel(const BareArguments) {}
}  // namespace

void launch_bare(const Stream& stream, const BareArguments& arguments) {
  bare_kernel<<<1, 256, 0, static_cast<cudaStream_t>(stream.native())>>>(arguments);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

}  // namespace stateport::perf
