// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/cache_stats.hpp>

#include "caches/cache.hpp"
#include "caches/prefix_history.hpp"
#include "caches/recorded_hits.hpp"
#include "states/forward_writer.hpp"
#include "states/pass_mover.hpp"
#include "workload/sequence.hpp"
#include "workload/workload.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::replay {

/// Counts of the requests of a tenant.
struct TenantCounts {
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;

  [[nodiscard]] double token_hit_rate() const noexcept;
};

/// Counts and times of a replay. Times are of the host, in ns per request that has at least one full block.
struct ReplayCounts {
  std::int64_t requests = 0;
  std::int64_t requests_hit = 0;
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::array<std::int64_t, lost_hit_count> lost_hits = {};
  RecordedHits recorded;
  std::array<TenantCounts, tenant_count> tenants = {};
  CacheStats stats;            ///< the same with every lost token and its reason, if that was asked for
  std::string first_mismatch;  ///< in words; empty: none
  double wall_seconds = 0;
  bool interrupted = false;  ///< set by the code that stopped it

  std::vector<std::int64_t> bookkeeping_ns;      ///< match, allocate, evict, register, release, without the clock
  std::vector<double> bookkeeping_ns_per_block;  ///< hashing included
  std::vector<double> hashing_ns_per_block;

  /// Counts a request for its tenant.
  void count_tenant(const Request& request, std::int64_t reused_tokens) noexcept;
  [[nodiscard]] const TenantCounts& of(Tenant tenant) const noexcept {
    return tenants[static_cast<std::size_t>(tenant)];
  }
  [[nodiscard]] double token_hit_rate() const noexcept;
  [[nodiscard]] double request_hit_rate() const noexcept;
};

/// Runs a workload through a cache and a state mover, one request at a time in the order of the workload.
class Replayer {
 public:
  /// Called after each request with the number served so far; false ends the replay.
  using Continue = std::function<bool(std::int64_t)>;

  /// `explain`: every lost token gets its reason and its cost (`stats`). That keeps a record of all blocks ever seen,
  /// which a timed replay must not share the caches with.
  /// `history`: conv tokens of a state, at least 1.
  Replayer(const Workload& workload, ReplayCache& cache, PassMover& mover,
           const std::optional<ComputeCost>& explain = ComputeCost{}, std::int32_t history = 1);

  void run(const Continue& keep_going);
  [[nodiscard]] const ReplayCounts& counts() const noexcept { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;

  void serve(std::size_t index);
  void count_hit(const Request& request, const Hit& hit);
  /// Carries out the copies and the forward of a pass.
  void run_pass(const PassPlan& plan, const Hit& hit);
  void note_times(Clock::duration hashing, Clock::duration bookkeeping, std::size_t blocks);

  const Workload& workload_;
  ReplayCache& cache_;
  PassMover& mover_;
  bool explain_;
  std::int64_t clock_read_ns_;
  ReplayCounts counts_;
  PrefixHistory history_;
  Sequence names_;  ///< of the current prompt, as the cache sees it
  ForwardWriter writer_;
};

}  // namespace stateport::replay
