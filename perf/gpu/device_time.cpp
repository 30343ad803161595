// SPDX-License-Identifier: Apache-2.0
#include "device_time.hpp"

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/pinned_resource.hpp>

#include "device_gate.hpp"
#include "vendor_calls.hpp"

#include <atomic>

namespace stateport::perf {
namespace {

struct Stopwatch {
  Stopwatch() { check(STATEPORT_VENDOR(EventCreate)(&begin)), check(STATEPORT_VENDOR(EventCreate)(&end)); }

  [[nodiscard]] std::atomic_ref<int> state() { return std::atomic_ref<int>(*gate.as<int>()); }

  STATEPORT_VENDOR(Event_t) begin = nullptr, end = nullptr;
  PinnedResource pinned;
  Buffer gate{pinned, sizeof(int)};
};

// Never destroyed: the device's runtime may be gone by then.
Stopwatch& stopwatch() {
  static auto* const watch = new Stopwatch;
  return *watch;
}

/// Opens the gate at the end of its scope, also when enqueuing throws.
struct Opening {
  ~Opening() {
    int expected = closed;
    stopwatch().state().compare_exchange_strong(expected, open);
  }
};

}  // namespace

DeviceTime device_time(const Stream& stream, const std::function<void()>& enqueue) {
  Stopwatch& watch = stopwatch();
  stream.synchronize();
  watch.state() = closed;
  {
    const Opening opening;
    wait_at_gate<<<1, 1, 0, native(stream)>>>(watch.gate.as<int>(), gate_ticks_max);
    check_launch();
    check(STATEPORT_VENDOR(EventRecord)(watch.begin, native(stream)));
    enqueue();
    check(STATEPORT_VENDOR(EventRecord)(watch.end, native(stream)));
  }
  check(STATEPORT_VENDOR(EventSynchronize)(watch.end));
  float milliseconds = 0;
  check(STATEPORT_VENDOR(EventElapsedTime)(&milliseconds, watch.begin, watch.end));
  return {.ns = static_cast<double>(milliseconds) * 1e6, .host_in_time = watch.state() == forced};
}

void launch_empty_kernel(const Stream& stream) {
  empty_kernel<<<1, 32, 0, native(stream)>>>();
  check_launch();
}

}  // namespace stateport::perf
