// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_planner.hpp>
#include <stateport/core/align/align_staging.hpp>
#include <stateport/core/model/ids.hpp>

#include "caches/align_cache.hpp"
#include "caches/replayer.hpp"
#include "states/align_mover.hpp"
#include "workload/align_sequence.hpp"
#include "workload/workload.hpp"

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

namespace stateport::replay {

/// Requests that a replay in align mode serves at the same time.
inline constexpr std::int32_t align_requests = 8;

struct AlignReplayOptions {
  std::int32_t blocks = 0;              ///< blocks of one state each, the null block not counted
  std::int32_t drafts = 0;              ///< K
  double accept = 0.7;                  ///< chance that a draft is kept, given that the one before it is
  bool asynchronous = false;            ///< block tables are made for the counts of one step before
  std::uint64_t seed = 1;               ///< of the acceptance
  std::int32_t history_tokens = 1;      ///< conv tokens of a state without drafts, at least 1
  std::int64_t step_tokens_max = 8192;  ///< prefill tokens of a step, over all requests; at least a block
};

/// What the align modes count beside a ReplayCounts.
struct AlignCounts {
  std::int64_t steps = 0;
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;
  std::int64_t copies = 0;          ///< of states or parts of them, as planned
  std::int64_t skipped_parts = 0;   ///< parts of copies without a valid block; a well-kept table has none
  std::int64_t refused = 0;         ///< boundaries whose block did not hold the state, and was not published
  std::int64_t steps_differ = 0;    ///< after which the mover remembered other columns or counts than the planner
  std::vector<double> planning_ns;  ///< per step
};

/// Columns of the longest row of a workload.
[[nodiscard]] std::int32_t align_columns(const Workload& workload, std::int32_t drafts);
/// Blocks with which nothing is ever evicted.
[[nodiscard]] std::int64_t align_blocks_max(const Workload& workload, std::int32_t drafts);

/// Runs a workload through block tables: up to align_requests requests at the same time are prefilled in chunks and
/// decode with drafts, AlignPlanner and a mover decide each step for themselves, and every block that a request
/// continues from, or that becomes findable, is checked.
class AlignReplayer {
 public:
  using Continue = Replayer::Continue;

  /// Throws InvalidArgument: as AlignCache and AlignPlanner, accept outside [0, 1], history_tokens < 1, blocks shorter
  /// than two running windows or longer than step_tokens_max.
  AlignReplayer(const Workload& workload, const AlignReplayOptions& options, AlignMover& mover);

  void run(const Continue& keep_going);

  [[nodiscard]] const ReplayCounts& counts() const noexcept { return counts_; }
  [[nodiscard]] const AlignCounts& align_counts() const noexcept { return align_; }
  [[nodiscard]] const AlignCache& cache() const noexcept { return cache_; }
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  /// A request that is being served.
  struct Serving {
    bool active = false;
    std::size_t index = 0;  ///< in the workload
    AlignSequence names;
    std::int64_t prompt = 0;
    std::int64_t end = 0;  ///< tokens to compute: the last one of the answer is never fed
    std::int64_t computed = 0;
    std::int64_t previous_start = -1;  ///< of the step before; -1: none
    std::int64_t previous_scheduled = 0;
    std::int32_t scheduled = 0;
    std::int32_t drafts = 0;
    std::int32_t sampled = 0;
  };

  void admit(RequestId request);
  void schedule();
  void schedule_decode(Serving& serving);
  void schedule_prefill(Serving& serving, std::int64_t& budget);
  void make_room(RequestId request);
  void fill_batch();
  void name_window(const Serving& serving);
  void plan();
  void publish(RequestId request, std::int64_t before);
  void finish(RequestId request);
  void check(std::uint64_t wrong_words, const Serving& serving, const char* what, BlockId block, std::int64_t tokens);

  const Workload& workload_;
  AlignReplayOptions options_;
  AlignMover& mover_;
  std::vector<std::size_t> continuations_;
  AlignCache cache_;
  AlignPlanner planner_;
  std::mt19937_64 random_;
  std::uint64_t accept_below_ = 0;  ///< a draft is kept when 32 random bits are below
  std::size_t next_ = 0;            ///< in the workload
  std::uint64_t rejected_ = 0;      ///< names of drafts that were not kept
  std::vector<Serving> serving_;
  ReplayCounts counts_;
  AlignCounts align_;

  // The batch of a step, in batch order.
  std::int32_t columns_;
  std::vector<StagedRequest> rows_;
  std::vector<std::int32_t> request_, computed_, scheduled_, drafts_, sampled_;
  std::vector<std::int32_t> table_;
  std::vector<Content> from_;
  std::vector<Content> window_;
  std::vector<Content> ending_;  ///< prefixes that end at the last tokens of a state that is checked
};

}  // namespace stateport::replay
