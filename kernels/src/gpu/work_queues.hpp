// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>

#include "../work_queue.hpp"

#include <cstdint>

namespace stateport::kernels {

/// The queues of the launches of one object, in device memory.
class WorkQueues {
 public:
  static constexpr std::uint32_t launches_in_flight_max = 8192;
  static constexpr std::uint32_t captured_max = 2048;

  WorkQueues();

  /// The queue of the next launch on a stream. A launch that is captured keeps its own for good, since its graph may
  /// run beside any other launch. nullptr when no such queue is left. Other launches have queues by turns: at most
  /// launches_in_flight_max of them may be under way. Does not wait or allocate.
  [[nodiscard]] WorkQueue* next(const Stream& stream);

 private:
  DeviceResource resource_;
  Buffer queues_;  ///< [launches_in_flight_max + captured_max]
  std::uint32_t captured_ = 0;
  std::uint32_t next_ = 0;
};

}  // namespace stateport::kernels
