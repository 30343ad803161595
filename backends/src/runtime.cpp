// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/runtime.hpp>

#include <stateport/core/model/error.hpp>

#include "native_device.hpp"

#include <Kokkos_Core.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>

namespace stateport {
namespace {

struct RuntimeState {
  std::mutex mutex;
  int alive = 0;         ///< Runtime objects
  bool started = false;  ///< Kokkos runs because a Runtime started it
};

// Never destroyed: a Runtime of static storage may go after everything else.
RuntimeState& runtime_state() {
  static auto* const state = new RuntimeState;
  return *state;
}

void finalize_what_was_started() {
  if (runtime_state().started && Kokkos::is_initialized()) Kokkos::finalize();
}

int choose_device(int asked) {
  require(asked >= Runtime::any_device, "device_id", asked, "must be the id of a device, or any_device");
  const detail::DeviceCount present = detail::count_devices();
  const int device_id = asked == Runtime::any_device ? 0 : asked;
  if (present.count == 0) {
    const std::string why = present.reason.empty() ? "" : fmt::format(" ({})", present.reason);
    throw BackendError(fmt::format("{} device {}", backend_info().name, device_id), "no device found" + why);
  }
  require(asked < present.count, "device_id", asked,
          fmt::format("must be below the number of devices, {}", present.count));
  return asked == Runtime::any_device ? detail::current_device() : asked;
}

void start_kokkos(int device_id, int host_threads) {
  Kokkos::InitializationSettings settings;
  settings.set_device_id(device_id);
  if (host_threads > 0) settings.set_num_threads(host_threads);
  // A library does not tell its users how to set OMP_PROC_BIND, nor that they oversubscribe their cores.
  settings.set_disable_warnings(true);
  try {
    Kokkos::initialize(settings);
  } catch (const std::exception& failure) {
    throw BackendError("Kokkos::initialize", failure.what());
  }
  // Registered after the vendor's runtime was loaded, so that it runs before that is taken down.
  std::atexit(finalize_what_was_started);
}

}  // namespace

Runtime::Runtime(const Options& options) {
  RuntimeState& state = runtime_state();
  const std::lock_guard lock(state.mutex);
  require(options.host_threads >= 0, "host_threads", options.host_threads, "must not be negative");
  if (Kokkos::is_finalized())
    throw BackendError("Runtime", "Kokkos was finalized, and cannot start twice in one process");
  if (Kokkos::is_initialized()) {
    const int device_id = detail::device_in_use();
    require(options.device_id == any_device || options.device_id == device_id, "device_id", options.device_id,
            fmt::format("device {} is in use in this process", device_id));
    device_ = detail::describe_device(device_id);
  } else {
    const int device_id = choose_device(options.device_id);
    device_ = detail::describe_device(device_id);
    detail::require_usable(device_id);
    start_kokkos(device_id, options.host_threads);
    state.started = true;
  }
  ++state.alive;
}

Runtime::~Runtime() {
  const std::lock_guard lock(runtime_state().mutex);
  --runtime_state().alive;
}

bool Runtime::is_running() noexcept {
  return Kokkos::is_initialized();
}

void Runtime::finalize() {
  const std::lock_guard lock(runtime_state().mutex);
  require_state(runtime_state().alive == 0, "Runtime::finalize", "a Runtime is alive");
  finalize_what_was_started();
}

}  // namespace stateport
