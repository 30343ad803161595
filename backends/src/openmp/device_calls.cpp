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

void require_reachable(const void*, const char*) {}
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
