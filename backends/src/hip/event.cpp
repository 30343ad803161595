// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/event.hpp>

#include "../native_device.hpp"
#include "../stream_check.hpp"
#include "check.hpp"

namespace stateport {

using detail::check;

namespace {
hipEvent_t as_event(void* native) noexcept {
  return static_cast<hipEvent_t>(native);
}
hipStream_t as_stream(const Stream& stream) noexcept {
  return static_cast<hipStream_t>(stream.native());
}
}  // namespace

Event::Event() {
  const detail::DeviceGuard guard(detail::device_in_use());
  hipEvent_t event = nullptr;
  check(hipEventCreateWithFlags(&event, hipEventDisableTiming), "hipEventCreateWithFlags");
  native_ = event;
}

Event::~Event() {
  if (native_ != nullptr) static_cast<void>(hipEventDestroy(as_event(native_)));
}

void Event::record(const Stream& stream) {
  detail::require_usable(stream);
  check(hipEventRecord(as_event(native_), as_stream(stream)), "hipEventRecord");
}

void Event::wait(const Stream& stream) const {
  detail::require_usable(stream);
  check(hipStreamWaitEvent(as_stream(stream), as_event(native_), 0), "hipStreamWaitEvent");
}

void Event::synchronize() const {
  check(hipEventSynchronize(as_event(native_)), "hipEventSynchronize");
}

bool Event::query() const {
  const hipError_t status = hipEventQuery(as_event(native_));
  if (status == hipErrorNotReady) {
    static_cast<void>(hipGetLastError());  // it is an answer, not an error that a later query should find
    return false;
  }
  check(status, "hipEventQuery");
  return true;
}

}  // namespace stateport
