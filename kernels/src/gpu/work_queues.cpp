// SPDX-License-Identifier: Apache-2.0
#include "work_queues.hpp"

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/transfer.hpp>

namespace stateport::kernels {

WorkQueues::WorkQueues() : queues_(resource_, (launches_in_flight_max + captured_max) * sizeof(WorkQueue)) {
  const Stream stream = Stream::default_stream();
  fill_bytes(stream, queues_.data(), std::byte{0}, queues_.size_bytes());
  stream.synchronize();
}

WorkQueue* WorkQueues::next(const Stream& stream) {
  auto* const queues = queues_.as<WorkQueue>();
  if (detail::is_capturing(stream))
    return captured_ < captured_max ? queues + launches_in_flight_max + captured_++ : nullptr;
  return queues + next_++ % launches_in_flight_max;
}

}  // namespace stateport::kernels
