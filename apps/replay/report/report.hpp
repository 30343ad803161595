// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/cache.hpp"
#include "caches/replayer.hpp"
#include "caches/request_replayer.hpp"
#include "options/options.hpp"
#include "report/sweep.hpp"
#include "report/timeline.hpp"
#include "states/pass_mover.hpp"
#include "workload/trace_types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stateport::replay {

/// The settings of a run, in words and numbers.
struct RunDescription {
  std::string command;   ///< of stateport-replay
  std::string workload;  ///< file and format, or kind and seed
  std::string model;
  std::string cache;
  std::string checkpoint;
  std::string hash;
  std::string full_state;    ///< shape of a state of the model
  std::string memory_state;  ///< shape of a state as it is in memory; empty: none is
  std::string device;
  std::int64_t block_size_tokens = 0;
  std::int64_t blocks = 0;
  std::int64_t slots = 0;
  bool unlimited = false;
  MemoryOptions memory;     ///< without bytes: blocks and slots
  std::int32_t drafts = 0;  ///< align only, like the next two
  double accept = 0;
  bool asynchronous = false;
  ScheduleOptions schedule;  ///< serve only
  TenantOptions tenants;
  std::int64_t bad_lines = 0;
  std::optional<TraceHeader> recorded;    ///< of a recorded trace
  std::int64_t never_ran = 0;             ///< cancelled requests that the recorded trace has and the workload has not
  std::size_t full_state_bytes = 0;       ///< of a state of a running request, whatever it is in memory
  std::string checkpoint_type = "model";  ///< of recurrent states in checkpoints; model: as in running requests
  std::size_t checkpoint_bytes = 0;       ///< bytes that one checkpoint counts for
  /// Bytes that a copy between a state and a checkpoint reads and writes.
  [[nodiscard]] std::size_t copy_bytes() const noexcept { return full_state_bytes + checkpoint_bytes; }
  std::size_t memory_bytes = 0;  ///< really used for states

  /// Room of a tier; 0: there is none.
  [[nodiscard]] std::int64_t tier_bytes(Medium medium) const noexcept {
    return medium == Medium::host ? memory.host_bytes : medium == Medium::file ? memory.disk_bytes : 0;
  }
  [[nodiscard]] bool has_tier(Medium medium) const noexcept { return tier_bytes(medium) > 0; }
};

/// Everything that a run has to say.
struct Report {
  RunDescription run;
  ReplayCounts replay;
  ReplayCounts bookkeeping;  ///< of the same requests through the same kind of cache, with no state made or moved
  CacheCounts cache;
  MoverCounts mover;
  std::optional<PassCounts> passes;  ///< planning times are of the pass without states

  // Of a budget.
  std::vector<Interval> timeline;     ///< of the pass with states
  std::vector<SweepCell> capacities;  ///< with --compare: every policy with a quarter to four times the budget

  /// Token hit rate of a cache that keeps everything, with a state after every block.
  [[nodiscard]] double token_hit_rate_ceiling() const noexcept;
};

/// The part of all input tokens that were loaded from a tier of the report.
[[nodiscard]] double tier_hit_rate(const Report& report, const TierUsage& tier) noexcept;

/// Figures that follow from the counts of a report. Times are of the pass without states, where nothing else is said.
struct Derived {
  double states_copied = 0;
  double bytes_copied = 0;  ///< at the model's full state size, read + written
  double bytes_moved = 0;   ///< really read + written
  double copy_gb_per_s = 0;
  double bookkeeping_p50 = 0;
  double bookkeeping_p99 = 0;
  double bookkeeping_per_block = 0;
  double hashing_per_block = 0;
  double bookkeeping_per_block_beside_copies = 0;
  double computed_share = 0;  ///< of all prompt tokens; `serve` alone, like the others below
  double awaited_share = 0;
  double first_token_p50 = 0;  ///< in computed prompt tokens
  double first_token_p99 = 0;
  double planning_p50 = 0;
  double planning_p99 = 0;

  explicit Derived(const Report& report);
};

/// In words.
[[nodiscard]] std::string describe(const ScheduleOptions& schedule);

/// For people.
[[nodiscard]] std::string to_text(const Report& report);

}  // namespace stateport::replay
