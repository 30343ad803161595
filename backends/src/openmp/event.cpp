// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/event.hpp>

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>

#include "../stream_check.hpp"

namespace stateport {

// Work is done when the call that enqueues it returns, so every point is reached when it is recorded.
Event::Event() {
  if (!Runtime::is_running()) throw BackendError("Event", "start a stateport::Runtime first");
}
Event::~Event() = default;
void Event::record(const Stream& stream) {
  detail::require_usable(stream);
}
void Event::wait(const Stream& stream) const {
  detail::require_usable(stream);
}
void Event::synchronize() const {
  if (detail::pretence().work_runs) detail::pretence().work_runs = false;
}
bool Event::query() const {
  return !detail::pretence().work_runs;
}

}  // namespace stateport
