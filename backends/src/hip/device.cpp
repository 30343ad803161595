// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device.hpp>

#include "../native_device.hpp"
#include "check.hpp"

#include <fmt/format.h>
#include <hip/hip_runtime.h>

namespace stateport {
namespace {
// Kokkos ends the process on a device for which the build has no code; asking about a kernel tells beforehand.
__global__ void probe() {}
}  // namespace

BackendInfo backend_info() noexcept {
  return {.name = "HIP", .kokkos_version = STATEPORT_KOKKOS_VERSION, .host_reads_device_memory = false};
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  const int count = detail::count_devices().count;
  for (int device_id = 0; device_id < count; ++device_id) found.push_back(detail::describe_device(device_id));
  return found;
}

namespace detail {

DeviceCount count_devices() {
  int count = 0;
  const hipError_t status = hipGetDeviceCount(&count);
  if (status == hipSuccess) return {.count = count, .reason = {}};
  // No device, or no driver, or one too old.
  if (status == hipErrorNoDevice || status == hipErrorInsufficientDriver) {
    static_cast<void>(hipGetLastError());
    return {.count = 0, .reason = hipGetErrorString(status)};
  }
  check(status, "hipGetDeviceCount");
  return {};
}

DeviceInfo describe_device(int device_id) {
  hipDeviceProp_t properties{};
  check(hipGetDeviceProperties(&properties, device_id), "hipGetDeviceProperties");
  // "gfx942:sramecc+:xnack-": the features after the name do not matter here.
  const std::string_view architecture = properties.gcnArchName;
  return {.id = device_id,
          .name = properties.name,
          .architecture = std::string(architecture.substr(0, architecture.find(':'))),
          .memory_bytes = properties.totalGlobalMem,
          .compute_units = properties.multiProcessorCount};
}

int current_device() {
  int device_id = 0;
  check(hipGetDevice(&device_id), "hipGetDevice");
  return device_id;
}

void require_usable(int device_id) {
  const DeviceGuard guard(device_id);
  hipFuncAttributes attributes{};
  const hipError_t status = hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe));
  if (status != hipErrorNoBinaryForGpu && status != hipErrorInvalidDeviceFunction) {
    check(status, "hipFuncGetAttributes");
    return;
  }
  static_cast<void>(hipGetLastError());
  throw BackendError(fmt::format("HIP device {}", device_id),
                     fmt::format("this build has no code for {}", describe_device(device_id).architecture));
}

}  // namespace detail
}  // namespace stateport
