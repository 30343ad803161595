// SPDX-License-Identifier: Apache-2.0
#include "workload/trace_types.hpp"

#include <fmt/format.h>

namespace stateport::replay {

std::string_view name(TraceFormat format) noexcept {
  switch (format) {
    case TraceFormat::mooncake:
      return "Mooncake JSON lines";
    case TraceFormat::burstgpt:
      return "BurstGPT CSV";
    case TraceFormat::azure:
      return "Azure CSV";
    case TraceFormat::sharegpt:
      return "ShareGPT JSON";
    case TraceFormat::recorded:
      return "stateport trace";
  }
  return "?";
}

std::string Trace::description() const {
  return fmt::format("{}{}", name(format), compressed ? " in gzip" : "");
}

TraceError::TraceError(TraceFormat format, const std::string& place, const std::string& reason)
    : std::runtime_error(fmt::format("{}, {}: {}", name(format), place, reason)),
      format_(format),
      place_(place),
      reason_(reason) {}

}  // namespace stateport::replay
