// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/cache_stats.hpp>
#include <stateport/core/stats/lost_hit.hpp>

#include "caches/cache.hpp"
#include "caches/checkpoint_mode.hpp"
#include "caches/prefix_history.hpp"
#include "states/state_mover.hpp"
#include "workload/workload.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::replay {

/// What a replay counted and timed. Times are of the host, in ns per request that has at least one full block.
struct ReplayCounts {
  std::int64_t requests = 0;
  std::int64_t requests_hit = 0;
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::array<std::int64_t, lost_hit_count> lost_hits = {};
  CacheStats stats;            ///< the same with every lost token and its reason, if that was asked for
  std::string first_mismatch;  ///< in words; empty: none
  double wall_seconds = 0;
  bool interrupted = false;  ///< set by who stopped it

  std::vector<std::int64_t> bookkeeping_ns;  ///< match, allocate, evict, register, release, without the clock
  std::vector<double> bookkeeping_ns_per_block;
  std::vector<double> hashing_ns_per_block;

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
  Replayer(const Workload& workload, ReplayCache& cache, StateMover& mover, CheckpointMode mode,
           const std::optional<ComputeCost>& explain = ComputeCost{});

  void run(const Continue& keep_going);
  [[nodiscard]] const ReplayCounts& counts() const noexcept { return counts_; }

 private:
  void serve(std::size_t index);
  void name_contents(std::span<const BlockIdentity> identities);
  void count_hit(const Request& request, const Hit& hit);
  void start(const Hit& hit);

  const Workload& workload_;
  ReplayCache& cache_;
  StateMover& mover_;
  CheckpointMode mode_;
  bool explain_;
  std::int64_t clock_read_ns_;
  ReplayCounts counts_;
  PrefixHistory history_;
  std::vector<Content> contents_;  ///< of the prefixes of 0 … n blocks of the current prompt
  std::vector<std::int32_t> depths_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<PlacedState> placed_;
};

}  // namespace stateport::replay
