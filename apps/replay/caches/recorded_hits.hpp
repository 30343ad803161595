// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>

namespace stateport::replay {

/// Tokens that an engine reused in life, and those that the replay reuses, of the requests whose trace has them.
struct RecordedHits {
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t recorded_tokens = 0;
  std::int64_t replayed_tokens = 0;

  /// `replayed`: tokens that the replay reuses for this request.
  void add(const Request& request, std::int64_t replayed) noexcept {
    if (request.recorded_hit_tokens < 0) return;
    ++requests;
    input_tokens += request.input_tokens;
    recorded_tokens += request.recorded_hit_tokens;
    replayed_tokens += replayed;
  }
};

}  // namespace stateport::replay
