// SPDX-License-Identifier: Apache-2.0
#include "../native_stream.hpp"

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"

#include <type_traits>

namespace stateport::detail {

static_assert(std::is_same_v<ExecutionSpace, Kokkos::OpenMP>, "this Kokkos has another default device than OpenMP");

ExecutionSpace make_execution_space(void* native) {
  require(native == nullptr, "native", reinterpret_cast<std::uintptr_t>(native), "must be nullptr in an OpenMP build");
  return {};
}

void* native_stream(const ExecutionSpace&) noexcept {
  return nullptr;
}

// The instances of all streams share one team of threads: work runs in the call that enqueues it.
void* create_native_stream() {
  return nullptr;
}
void destroy_native_stream(void*) noexcept {}
void synchronize_native_stream(void*) {}

int device_in_use() {
  if (!Kokkos::is_initialized()) throw BackendError("OpenMP device", "start a stateport::Runtime first");
  return 0;
}

}  // namespace stateport::detail
