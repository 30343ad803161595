// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/cache_stats.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "caches/replayer.hpp"
#include "states/pass_mover.hpp"
#include "workload/workload.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::replay {

/// Counts of the time in which a part of a workload was served.
struct Interval {
  double begin_s = 0;  ///< when its first request came, since the first of all
  double end_s = 0;    ///< when the next interval's came, or the last of all
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t host_hit_tokens = 0;  ///< of these, loaded from the host, and in the next from files
  std::int64_t file_hit_tokens = 0;
  std::array<std::int64_t, lost_hit_count> lost_tokens = {};
  std::int64_t kv_bytes = 0;  ///< resident at the end, like the next
  std::int64_t state_bytes = 0;
  std::int64_t states_copied = 0;  ///< restored and committed
  double copy_seconds = 0;         ///< that these copies took
};

/// Bytes read and written per second of the workload, if a copy reads and writes `copy_bytes` together.
[[nodiscard]] double needed_gb_per_s(const Interval& interval, std::size_t copy_bytes) noexcept;
/// Read and written per second of the copies; 0 if there were none.
[[nodiscard]] double copied_gb_per_s(const Interval& interval, std::size_t copy_bytes) noexcept;

/// Watches a replay and cuts it into intervals of equally many requests. The workload, the cache and the mover must
/// outlive it.
class Timeline {
 public:
  static constexpr int intervals_max = 24;

  /// Of the first `requests` requests of the workload.
  Timeline(const Workload& workload, std::int64_t requests, const Budget& budget, const ReplayCache& cache,
           const PassMover& mover);

  /// Call it after each request with the number of served requests and the counts so far. O(1) but for the last of an
  /// interval.
  void served(std::int64_t requests, const ReplayCounts& counts);
  /// The replay has ended. Returns the intervals up to the last request.
  [[nodiscard]] std::vector<Interval> take(const ReplayCounts& counts);

 private:
  [[nodiscard]] std::int64_t interval_of(std::int64_t request) const { return request * intervals_max / wanted_; }
  [[nodiscard]] double arrival_s(std::int64_t request) const;
  void close(const ReplayCounts& counts);

  const Workload& workload_;
  const Budget budget_;
  const ReplayCache& cache_;
  const PassMover& mover_;
  std::int64_t wanted_;
  Interval totals_;  ///< of all closed intervals
  std::vector<Interval> closed_;
};

}  // namespace stateport::replay
