// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "caches/cache.hpp"
#include "caches/replayer.hpp"
#include "caches/schedule_options.hpp"
#include "caches/tenant_options.hpp"
#include "states/forward_writer.hpp"
#include "states/pass_mover.hpp"
#include "workload/sequence.hpp"
#include "workload/workload.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace stateport::replay {

/// Blocks that a running request may need in align mode: the running window, the boundary before it, one more with
/// asynchronous counters, and one while the window moves.
[[nodiscard]] constexpr std::int64_t blocks_held_max(std::int32_t drafts) noexcept {
  return 4 + std::int64_t{drafts};
}

struct RequestReplayOptions {
  /// With blocks of the workload's size. `max_requests` are in flight; `overlap`: counters are asynchronous.
  RequestCacheOptions cache;
  double accept = 0.7;              ///< chance that a draft is kept, given that the one before it is
  std::uint64_t seed = 1;           ///< of the acceptance
  std::int32_t history_tokens = 1;  ///< conv tokens of a state without drafts, at least 1
  bool breakpoints = false;         ///< prompts name Request::left_at_tokens
  /// With sessions in `cache` a session is closed after its last request, and after this share, in per cent, of its
  /// other requests.
  double mistaken_closes = 0;
  // See ScheduleOptions.
  std::int32_t running_max = 0;
  std::int64_t step_tokens_max = pass_tokens;  ///< at least a block
  bool refresh = false;
  TenantOptions tenants;  ///< quotas, with tenant_quotas in `cache`
};

/// Counts of a replay over RequestCache, beside a ReplayCounts.
struct PassCounts {
  std::int64_t steps = 0;
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;
  std::int64_t copies = 0;         ///< of states or parts of them, as planned
  std::int64_t skipped_parts = 0;  ///< copies that name no slot; there are none
  std::int64_t refused = 0;        ///< checkpoints that found no room, and were not published
  std::int64_t computed_prompt_tokens = 0;
  /// Of each request: the prompt tokens that the engine had computed, of all requests, when the prompt was computed.
  /// Divided by a prefill rate this is the time to its first token, if all requests come at once.
  std::vector<double> first_token_after_tokens;
  std::vector<double> planning_ns;  ///< plan and commit, per step
};

/// An align cache with room for `blocks` states, for the requests in flight and all their KV. Throws InvalidArgument
/// for concurrency < 1, drafts < 0 and for fewer blocks than the requests hold when each needs the most.
[[nodiscard]] RequestCacheOptions align_cache_options(const Workload& workload, std::int32_t blocks,
                                                      std::int32_t drafts, bool asynchronous,
                                                      CacheIndex index = CacheIndex::hash,
                                                      const ScheduleOptions& schedule = {});
/// A cache by block hash or by tokens with room for `blocks` blocks of KV and `slots` checkpoints, for the requests in
/// flight. Throws InvalidArgument for concurrency < 1, slots < 0 and fewer blocks than served_blocks_min().
[[nodiscard]] RequestCacheOptions pool_cache_options(const Workload& workload, CacheIndex index, std::int64_t blocks,
                                                     std::int64_t slots, bool asynchronous,
                                                     const ScheduleOptions& schedule = {});
/// KV blocks with which this number of requests always finds room.
[[nodiscard]] std::int64_t served_blocks_min(const Workload& workload, std::int32_t concurrency = requests_at_a_time);
/// Blocks, of KV or of states, with which nothing is ever evicted.
[[nodiscard]] std::int64_t align_blocks_max(const Workload& workload, std::int32_t drafts,
                                            std::int32_t concurrency = requests_at_a_time);

/// Serves a workload as an engine does that codes against RequestCache, whatever the index: up to max_requests requests
/// are in flight. The engine looks a request up when it admits it. In this order requests are prefilled in chunks, and
/// then they decode with drafts. A mover makes and moves the states; every state that a request continues from is
/// checked, in align mode every one that is published, and with synchronous counters the one that a request ends with.
class RequestReplayer {
 public:
  using Continue = Replayer::Continue;

  /// Throws InvalidArgument: as make_request_cache; accept outside [0, 1], history_tokens < 1, running_max < 0, blocks
  /// of another size than the workload's, shorter than two decode steps or longer than step_tokens_max.
  RequestReplayer(const Workload& workload, const RequestReplayOptions& options, PassMover& mover);

  void run(const Continue& keep_going);

  [[nodiscard]] const ReplayCounts& counts() const noexcept { return counts_; }
  [[nodiscard]] const PassCounts& pass_counts() const noexcept { return passes_; }
  [[nodiscard]] CacheCounts cache_counts() const;
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const { cache_->check_invariants(); }

 private:
  using Clock = std::chrono::steady_clock;

  void close_session(std::size_t index);

  /// A request that is being served.
  struct Serving {
    RequestId request;      ///< not valid: free
    std::size_t index = 0;  ///< in the workload
    Sequence names;
    std::int64_t prompt = 0;
    std::int64_t end = 0;       ///< tokens to compute: the last one of the answer is never fed
    std::int64_t computed = 0;  ///< of committed passes
    std::int64_t reused = 0;
    std::optional<LostHit> lost;  ///< why it reuses no more
    bool waited = false;          ///< for another request, when it was looked up last
    bool scheduled = false;       ///< a pass of it is planned
    bool begun = false;           ///< a pass of it has run
  };
  struct Row {
    std::size_t serving = 0;
    std::int32_t tokens = 0;
    std::int32_t drafts = 0;
    std::int32_t sampled = 0;  ///< set when the row runs
    std::int64_t start = 0;
    bool runs = false;
  };
  /// A planned pass.
  struct Pass {
    PassId id = 0;
    std::vector<Row> rows;
  };

  [[nodiscard]] bool advance(const Continue& keep_going);
  void admit();
  [[nodiscard]] bool start(Serving& serving);
  [[nodiscard]] std::int64_t computed_at_least(std::size_t index) const;
  [[nodiscard]] Pass schedule();
  void add_prefills(Pass& pass);
  void look_up_again(Serving& serving);
  void count_hit(const Serving& serving);
  [[nodiscard]] Clock::duration plan(Pass& pass);
  void execute(const PassPlan& plan, Pass& pass);
  void sample(Row& row, const Serving& serving);
  void name_sampled(const Pass& pass);
  [[nodiscard]] bool settle(const Pass& pass, Pass& next, const Continue& keep_going);
  void count_prefills(const Pass& pass);
  void finish(Serving& serving);
  void check_published(const Serving& serving, std::int64_t from);
  void check(const RowState& state, const Serving& serving, std::int64_t tokens, const char* what, bool restored);
  void count_copies(CopyPlan copies);
  void take_events();

  const Workload& workload_;
  RequestReplayOptions options_;
  PassMover& mover_;
  std::vector<std::size_t> continuations_;
  std::vector<bool> ends_session_;  ///< by request: no later one is of its session
  std::unique_ptr<RequestCache> cache_;
  std::mt19937_64 random_;
  std::uint64_t accept_below_ = 0;  ///< a draft is kept when 32 random bits are below
  std::size_t next_ = 0;            ///< in the workload
  std::vector<Serving> serving_;
  std::vector<std::size_t> admitted_;  ///< valid ones of `serving_`, in the order of the workload
  Pass before_;                        ///< planned, and not committed when the next one is; without rows: none
  ReplayCounts counts_;
  PassCounts passes_;
  std::int64_t resident_states_ = 0;
  std::int64_t resident_blocks_ = 0;
  std::int64_t removed_blocks_ = 0;
  std::int64_t removed_states_ = 0;  ///< evicted, or gone with their KV

  // Of one call.
  std::vector<Token> prompt_;
  std::vector<PassRow> batch_;
  std::vector<std::int32_t> sampled_counts_;
  std::vector<Token> sampled_;
  ForwardWriter writer_;
  std::vector<CacheEvent> events_;
};

}  // namespace stateport::replay
