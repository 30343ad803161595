// SPDX-License-Identifier: Apache-2.0
#include "device_graph.hpp"

#include <cuda_runtime.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace stateport::test {
namespace {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

DeviceGraph::DeviceGraph(const Stream& stream, const std::function<void()>& enqueue, CaptureMode mode) {
  const bool only_this_thread = mode == CaptureMode::thread_local_calls;
  check(cudaStreamBeginCapture(native(stream),
                               only_this_thread ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal),
        "cudaStreamBeginCapture");
  std::exception_ptr thrown;
  try {
    enqueue();
  } catch (...) {
    thrown = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t end = cudaStreamEndCapture(native(stream), &graph);
  if (thrown && end == cudaSuccess) static_cast<void>(cudaGraphDestroy(graph));
  if (thrown) std::rethrow_exception(thrown);
  check(end, "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check(instantiated, "cudaGraphInstantiate");
  executable_ = executable;
}

DeviceGraph::~DeviceGraph() {
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
}

void DeviceGraph::launch(const Stream& stream) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), native(stream)), "cudaGraphLaunch");
}

}  // namespace stateport::test
