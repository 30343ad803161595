// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/device_calls.hpp>

#include <stateport/core/model/error.hpp>

#include "../native_device.hpp"

namespace stateport::detail {

Pretence& pretence() noexcept {
  static Pretence none;
  return none;
}

bool is_capturing(const Stream&) {
  return pretence().captures;
}

MemoryPlace native_place_of(const void*) {
  return pretence().memory;
}
bool reaches_pageable_memory() {
  return false;  // asked only where a test pretends that memory is pageable
}
int device_of_stream(void*) {
  return pretence().stream_device;
}
int compute_units() {
  return describe_device(device_in_use()).compute_units;
}
void wait_for_device() noexcept {}

LaunchScope::LaunchScope() = default;
LaunchScope::~LaunchScope() = default;
void LaunchScope::check(const char* label) const {
  if (pretence().refuses_launches) throw BackendError(label, "a test pretends that the launch was refused");
}

}  // namespace stateport::detail
