// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_options.hpp>

#include <cstdint>

namespace stateport::replay {

/// Requests in flight where nothing else is said.
inline constexpr std::int32_t requests_at_a_time = 8;
/// Prefill tokens of a pass, likewise.
inline constexpr std::int64_t pass_tokens = 8192;

/// How an engine schedules the requests of a replay over RequestCache.
struct ScheduleOptions {
  std::int32_t concurrency = requests_at_a_time;  ///< requests in flight: looked up, and waiting or running
  std::int32_t running_max = 0;                   ///< of these, that run at a time; 0: all
  std::int64_t step_tokens_max = pass_tokens;     ///< prefill tokens of a pass, over all requests
  bool refresh = false;  ///< the engine looks a waiting request up again when it is about to run it
  ShareRunning share_running;
};

}  // namespace stateport::replay
