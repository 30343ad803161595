// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/event.hpp>

#include "../native_device.hpp"
#include "../stream_check.hpp"
#include "check.hpp"

namespace stateport {

using detail::check;

namespace {
cudaEvent_t as_event(void* native) noexcept {
  return static_cast<cudaEvent_t>(native);
}
cudaStream_t as_stream(const Stream& stream) noexcept {
  return static_cast<cudaStream_t>(stream.native());
}
}  // namespace

Event::Event() {
  const detail::DeviceGuard guard(detail::device_in_use());
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  native_ = event;
}

Event::~Event() {
  if (native_ != nullptr) static_cast<void>(cudaEventDestroy(as_event(native_)));
}

void Event::record(const Stream& stream) {
  detail::require_usable(stream);
  check(cudaEventRecord(as_event(native_), as_stream(stream)), "cudaEventRecord");
}

void Event::wait(const Stream& stream) const {
  detail::require_usable(stream);
  check(cudaStreamWaitEvent(as_stream(stream), as_event(native_), 0), "cudaStreamWaitEvent");
}

void Event::synchronize() const {
  check(cudaEventSynchronize(as_event(native_)), "cudaEventSynchronize");
}

bool Event::query() const {
  const cudaError_t status = cudaEventQuery(as_event(native_));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // it is an answer, not an error that a later query should find
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}

}  // namespace stateport
