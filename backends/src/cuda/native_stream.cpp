// SPDX-License-Identifier: Apache-2.0
#include "../native_stream.hpp"

#include "../native_device.hpp"
#include "check.hpp"

#include <type_traits>

namespace stateport::detail {

static_assert(std::is_same_v<ExecutionSpace, Kokkos::Cuda>, "this Kokkos has another default device than CUDA");

ExecutionSpace make_execution_space(void* native) {
  // Kokkos asks the driver for the stream's context, and makes that context's device current.
  const DeviceGuard guard(device_in_use());
  return ExecutionSpace(static_cast<cudaStream_t>(native));
}

void* native_stream(const ExecutionSpace& space) noexcept {
  return space.cuda_stream();
}

void* create_native_stream() {
  const DeviceGuard guard(device_in_use());
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void destroy_native_stream(void* native) noexcept {
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(native)));
}

void synchronize_native_stream(void* native) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(native)), "cudaStreamSynchronize");
}

int device_in_use() {
  if (!Kokkos::is_initialized()) throw BackendError("CUDA device", "start a stateport::Runtime first");
  return ExecutionSpace().cuda_device();
}

}  // namespace stateport::detail
