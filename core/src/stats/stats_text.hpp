// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/cache_stats.hpp>

#include "stats/prometheus_text.hpp"

namespace stateport::detail {

/// Adds all families of to_prometheus(stats).
void add_stats(PrometheusText& text, const CacheStats& stats);

}  // namespace stateport::detail
