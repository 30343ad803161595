// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/recorded_hits.hpp"

#include <string>
#include <vector>

namespace stateport::replay {

/// The `part`-quantile (0 … 1, nearest rank) of `values`; 0 if there are none.
[[nodiscard]] double quantile(std::vector<double> values, double part);

/// 1.50 GiB, 12.1 KiB, 17 B.
[[nodiscard]] std::string human_bytes(double bytes);

/// In a sentence without an end. Precondition: recorded.requests > 0.
[[nodiscard]] std::string describe(const RecordedHits& recorded);

}  // namespace stateport::replay
