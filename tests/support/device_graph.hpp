// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <functional>

/// Graphs of the vendor's runtime, for tests and benchmarks. One source for each vendor.
namespace stateport::test {

/// What of the rest of the process a capture forbids calls that it could not record.
enum class CaptureMode {
  thread_local_calls,  ///< those of the capturing thread
  all_calls            ///< those of every thread
};

/// What `enqueue` puts on a stream (not the vendor's default one), captured once and replayed at will. In an OpenMP
/// build nothing is captured: a replay is a call of `enqueue`, to which the stream pretends to capture.
class DeviceGraph {
 public:
  /// Throws std::runtime_error with the vendor's text when the capture did not survive `enqueue`, and what `enqueue`
  /// throws, after the capture has ended.
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
