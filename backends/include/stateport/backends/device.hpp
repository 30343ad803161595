// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stateport {

/// One device that the build's backend can use. In an OpenMP build there is one: the host.
struct DeviceInfo {
  int id = 0;                    ///< the value for Runtime::Options::device_id
  std::string name;              ///< as the vendor spells it
  std::string architecture;      ///< "sm_90", "gfx942"; the processor's kind in an OpenMP build
  std::size_t memory_bytes = 0;  ///< the device's whole memory
  int compute_units = 0;         ///< multiprocessors, compute units, or hardware threads
};

/// The backend that this library was built for. All texts live as long as the program.
struct BackendInfo {
  std::string_view name;                  ///< "CUDA", "HIP" or "OpenMP"
  std::string_view kokkos_version;        ///< "5.2.2"
  bool host_reads_device_memory = false;  ///< memory of MemoryKind::device may be dereferenced by the host
};
[[nodiscard]] BackendInfo backend_info() noexcept;

/// The devices present, by id; empty when there is none (no hardware or no driver). Starts nothing. Throws
/// BackendError when the driver answers with another error than that.
[[nodiscard]] std::vector<DeviceInfo> devices();

}  // namespace stateport
