// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/device_calls.hpp>

#include "device_graph.hpp"

namespace stateport::test {

DeviceGraph::DeviceGraph(const Stream&, const std::function<void()>& enqueue, CaptureMode) : replay_(enqueue) {}
DeviceGraph::~DeviceGraph() = default;

void DeviceGraph::launch(const Stream&) const {
  struct Pretending {
    detail::Pretence before = detail::pretence();
    ~Pretending() { detail::pretence() = before; }
  };
  const Pretending scope;
  detail::pretence().captures = true;
  replay_();
}

}  // namespace stateport::test
