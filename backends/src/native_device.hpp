// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device.hpp>

#include <string>

/// Calls of src/runtime.cpp and the resources to the vendor's runtime about devices; one source per vendor.
namespace stateport::detail {

struct DeviceCount {
  int count = 0;
  std::string reason;  ///< why there is none, in the words of the vendor's runtime
};
/// Throws BackendError when the driver fails in another way than having no device.
[[nodiscard]] DeviceCount count_devices();
/// Precondition: 0 <= device_id < count. Throws BackendError.
[[nodiscard]] DeviceInfo describe_device(int device_id);
/// The calling thread's current device, which an engine may have set. Throws BackendError.
[[nodiscard]] int current_device();
/// Throws BackendError when the code of this library cannot run on the device, or not where it is called.
void require_usable(int device_id);

/// The device of the running Kokkos. Throws BackendError when none runs.
[[nodiscard]] int device_in_use();

}  // namespace stateport::detail
