// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <string>
#include <string_view>

namespace stateport {

/// The statistics of a cache, its contents and its work, in the text exposition format of Prometheus: all that
/// to_prometheus(CacheStats) has, and gauges and counters by tier. `tier` is device, host, file, remote or elsewhere,
/// `content` is kv, state or, for memory that both share, all. Bytes of the device are counted by
/// RequestCacheOptions::memory, and left out if that has its default, which is a ratio. A cache without tiers, or
/// without integrity, has no metrics of these. docs/operating.md describes each metric.
///
/// Changes nothing. Throws InvalidArgument for a prefix that no name of a metric can begin with. Allocates: call it
/// when a scraper asks. O(max_requests). Not thread-safe, as the cache.
[[nodiscard]] std::string to_prometheus(RequestCache& cache, std::string_view prefix = "stateport");

}  // namespace stateport
