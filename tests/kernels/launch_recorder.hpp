// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stateport::test {

/// Launches, fences and allocations of Kokkos since a LaunchRecorder was made. Only the device's default execution
/// space counts.
struct LaunchRecord {
  std::vector<std::string> launches;  ///< labels of parallel_for, in order
  std::uint64_t fences = 0;
  std::uint64_t allocations = 0;  ///< Kokkos allocations, deep copies included
};

/// Listens to Kokkos through its tool callbacks while it lives; one at a time.
class LaunchRecorder {
 public:
  LaunchRecorder();
  ~LaunchRecorder();
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;

  [[nodiscard]] const LaunchRecord& record() const noexcept;
};

}  // namespace stateport::test
