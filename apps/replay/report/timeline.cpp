// SPDX-License-Identifier: Apache-2.0
#include "report/timeline.hpp"

#include <algorithm>
#include <utility>

namespace stateport::replay {
namespace {

double read_and_written_gb(const Interval& interval, std::size_t copy_bytes) {
  return static_cast<double>(interval.states_copied) * static_cast<double>(copy_bytes) / 1e9;
}

}  // namespace

double needed_gb_per_s(const Interval& interval, std::size_t copy_bytes) noexcept {
  const double seconds = interval.end_s - interval.begin_s;
  return seconds > 0 ? read_and_written_gb(interval, copy_bytes) / seconds : 0;
}

double copied_gb_per_s(const Interval& interval, std::size_t copy_bytes) noexcept {
  return interval.copy_seconds > 0 ? read_and_written_gb(interval, copy_bytes) / interval.copy_seconds : 0;
}

Timeline::Timeline(const Workload& workload, std::int64_t requests, const Budget& budget, const ReplayCache& cache,
                   const PassMover& mover)
    : workload_(workload), budget_(budget), cache_(cache), mover_(mover), wanted_(requests) {}

double Timeline::arrival_s(std::int64_t request) const {
  constexpr double ms_of_second = 1000;
  const auto arrival_ms = [&](std::int64_t at) { return workload_.request(static_cast<std::size_t>(at)).arrival_ms; };
  return static_cast<double>(arrival_ms(request) - arrival_ms(0)) / ms_of_second;
}

void Timeline::served(std::int64_t requests, const ReplayCounts& counts) {
  if (requests < wanted_ && interval_of(requests) > interval_of(requests - 1)) close(counts);
}

void Timeline::close(const ReplayCounts& counts) {
  const CacheCounts cache = cache_.counts();
  const MoverCounts mover = mover_.counts();
  Interval now{.begin_s = arrival_s(totals_.requests),
               .end_s = arrival_s(std::min(counts.requests, wanted_ - 1)),
               .requests = counts.requests,
               .input_tokens = counts.input_tokens,
               .hit_tokens = counts.hit_tokens,
               .host_hit_tokens = cache.host_hit_tokens(),
               .file_hit_tokens = cache.file_hit_tokens(),
               .kv_bytes = cache.resident_blocks * budget_.block_bytes(),
               .state_bytes = cache.resident_states * budget_.state_bytes,
               .states_copied = mover.restores + mover.commits,
               .copy_seconds = mover.copy_seconds};
  for (std::size_t reason = 0; reason < now.lost_tokens.size(); ++reason)
    now.lost_tokens[reason] = counts.stats.lost[reason].tokens;
  const Interval before = std::exchange(totals_, now);
  now.requests -= before.requests;
  now.input_tokens -= before.input_tokens;
  now.hit_tokens -= before.hit_tokens;
  now.host_hit_tokens -= before.host_hit_tokens;
  now.file_hit_tokens -= before.file_hit_tokens;
  for (std::size_t reason = 0; reason < now.lost_tokens.size(); ++reason)
    now.lost_tokens[reason] -= before.lost_tokens[reason];
  now.states_copied -= before.states_copied;
  now.copy_seconds -= before.copy_seconds;
  closed_.push_back(now);
}

std::vector<Interval> Timeline::take(const ReplayCounts& counts) {
  if (counts.requests > totals_.requests) close(counts);
  return std::exchange(closed_, {});
}

}  // namespace stateport::replay
