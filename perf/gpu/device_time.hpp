// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <functional>

/// Time on the device. One source for each vendor.
namespace stateport::perf {

struct DeviceTime {
  double ns = 0;
  /// The device began before the host had enqueued everything, so that `ns` is partly the host's: it took longer than
  /// a tenth of a second, or enqueued more than the stream's queue holds (some 1,000 operations).
  bool host_in_time = false;
};

/// Time of the work that `enqueue` puts on the stream, between two of the device's events; waits for it. The work lies
/// behind a kernel that ends when `enqueue` has returned, so the host's time is not counted, however many operations it
/// enqueues. `enqueue` must not wait for the stream.
[[nodiscard]] DeviceTime device_time(const Stream& stream, const std::function<void()>& enqueue);

void launch_empty_kernel(const Stream& stream);

}  // namespace stateport::perf
