// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device.hpp>

#include "../native_device.hpp"
#include "check.hpp"

#include <fmt/format.h>

namespace stateport {
namespace {
// Kokkos ends the process on a device for which the build has no code; asking about a kernel tells beforehand.
__global__ void probe() {}
}  // namespace

BackendInfo backend_info() noexcept {
  return {.name = "CUDA", .kokkos_version = STATEPORT_KOKKOS_VERSION, .host_reads_device_memory = false};
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
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return {.count = count, .reason = {}};
  // No device, no driver or one too old for this toolkit, or the link-time stand-in for the driver.
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary) {
    static_cast<void>(cudaGetLastError());
    return {.count = 0, .reason = cudaGetErrorString(status)};
  }
  check(status, "cudaGetDeviceCount");
  return {};
}

DeviceInfo describe_device(int device_id) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device_id), "cudaGetDeviceProperties");
  return {.id = device_id,
          .name = properties.name,
          .architecture = fmt::format("sm_{}{}", properties.major, properties.minor),
          .memory_bytes = properties.totalGlobalMem,
          .compute_units = properties.multiProcessorCount};
}

int current_device() {
  int device_id = 0;
  check(cudaGetDevice(&device_id), "cudaGetDevice");
  return device_id;
}

void require_usable(int device_id) {
  const DeviceGuard guard(device_id);
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe));
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction) {
    check(status, "cudaFuncGetAttributes");
    return;
  }
  static_cast<void>(cudaGetLastError());
  throw BackendError(fmt::format("CUDA device {}", device_id),
                     fmt::format("this build has no code for {}", describe_device(device_id).architecture));
}

}  // namespace detail
}  // namespace stateport
