// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <functional>

/// Graphs of the vendor's runtime, for tests and benchmarks. One source for each vendor.
namespace stateport::test {

/// The threads that a capture forbids calls which it could not record.
enum class CaptureMode {
  thread_local_calls,  ///< those of the capturing thread
  all_calls            ///< those of every thread
};

/// The work that `enqueue` puts on a stream (not the vendor's default one), captured once and replayed at will. In an
/// OpenMP build nothing is captured: a replay is a call of `enqueue`, to which the stream pretends to capture.
class DeviceGraph {
 public:
  /// Throws std::runtime_error with the vendor's text if the capture fails because of `enqueue`. Rethrows an exception
  /// of `enqueue` after ending the capture.
  DeviceGraph(const Stream& stream, const std::function<void()>& enqueue,
              CaptureMode mode = CaptureMode::thread_local_calls);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void launch(const Stream& stream) const;

 private:
  [[maybe_unused]] void* executable_ = nullptr;  ///< a vendor's
  std::function<void()> replay_;                 ///< an OpenMP build's
};

}  // namespace stateport::test
