// SPDX-License-Identifier: Apache-2.0
#include "device_graph.hpp"

#include <hip/hip_runtime.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace stateport::test {
namespace {

void check(hipError_t error, const char* call) {
  if (error == hipSuccess) return;
  static_cast<void>(hipGetLastError());
  throw std::runtime_error(std::string(call) + ": " + hipGetErrorString(error));
}

hipStream_t native(const Stream& stream) {
  return static_cast<hipStream_t>(stream.native());
}

}  // namespace

DeviceGraph::DeviceGraph(const Stream& stream, const std::function<void()>& enqueue, CaptureMode mode) {
  const bool only_this_thread = mode == CaptureMode::thread_local_calls;
  check(hipStreamBeginCapture(native(stream),
                              only_this_thread ? hipStreamCaptureModeThreadLocal : hipStreamCaptureModeGlobal),
        "hipStreamBeginCapture");
  std::exception_ptr thrown;
  try {
    enqueue();
  } catch (...) {
    thrown = std::current_exception();
  }
  hipGraph_t graph = nullptr;
  const hipError_t end = hipStreamEndCapture(native(stream), &graph);
  if (thrown && end == hipSuccess) static_cast<void>(hipGraphDestroy(graph));
  if (thrown) std::rethrow_exception(thrown);
  check(end, "hipStreamEndCapture");
  hipGraphExec_t executable = nullptr;
  const hipError_t instantiated = hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
  static_cast<void>(hipGraphDestroy(graph));
  check(instantiated, "hipGraphInstantiate");
  executable_ = executable;
}

DeviceGraph::~DeviceGraph() {
  static_cast<void>(hipGraphExecDestroy(static_cast<hipGraphExec_t>(executable_)));
}

void DeviceGraph::launch(const Stream& stream) const {
  check(hipGraphLaunch(static_cast<hipGraphExec_t>(executable_), native(stream)), "hipGraphLaunch");
}

}  // namespace stateport::test
