// SPDX-License-Identifier: Apache-2.0
#include "../native_stream.hpp"

#include "../native_device.hpp"
#include "check.hpp"

#include <type_traits>

namespace stateport::detail {

static_assert(std::is_same_v<ExecutionSpace, Kokkos::HIP>, "this Kokkos has another default device than HIP");

ExecutionSpace make_execution_space(void* native) {
  // Kokkos asks the driver for the stream's context, and makes that context's device current.
  const DeviceGuard guard(device_in_use());
  return ExecutionSpace(static_cast<hipStream_t>(native));
}

void* native_stream(const ExecutionSpace& space) noexcept {
  return space.hip_stream();
}

void* create_native_stream() {
  const DeviceGuard guard(device_in_use());
  hipStream_t stream = nullptr;
  check(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking), "hipStreamCreateWithFlags");
  return stream;
}

void destroy_native_stream(void* native) noexcept {
  static_cast<void>(hipStreamDestroy(static_cast<hipStream_t>(native)));
}

void synchronize_native_stream(void* native) {
  check(hipStreamSynchronize(static_cast<hipStream_t>(native)), "hipStreamSynchronize");
}

int device_in_use() {
  if (!Kokkos::is_initialized()) throw BackendError("HIP device", "start a stateport::Runtime first");
  return ExecutionSpace().hip_device();
}

}  // namespace stateport::detail
