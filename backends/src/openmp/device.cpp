// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device.hpp>

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"

#include <omp.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <thread>

namespace stateport {

BackendInfo backend_info() noexcept {
  return {.name = "OpenMP", .kokkos_version = STATEPORT_KOKKOS_VERSION, .host_reads_device_memory = true};
}

std::vector<DeviceInfo> devices() {
  return {detail::describe_device(0)};
}

namespace detail {

DeviceCount count_devices() {
  return {.count = 1, .reason = {}};
}

DeviceInfo describe_device(int device_id) {
  DeviceInfo info{.id = device_id, .name = "host"};
  if (utsname system{}; ::uname(&system) == 0) info.architecture = system.machine;
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0)
    info.memory_bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
  info.compute_units = static_cast<int>(std::thread::hardware_concurrency());
  return info;
}

int current_device() {
  return 0;
}

void require_usable(int) {
  if (omp_in_parallel() != 0) throw BackendError("Runtime", "cannot start inside an OpenMP parallel region");
}

}  // namespace detail
}  // namespace stateport
