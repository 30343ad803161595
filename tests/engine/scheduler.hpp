// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache.hpp"
#include "model.hpp"
#include "schedule.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

namespace stateport::engine {

/// Serves the requests of a schedule: continuous batching, chunked prefill within a token budget, speculative decoding,
/// preemption when room is short, and the schedule's events. Sequences run in the order in which they were admitted;
/// the last one gives way, so the first always gets on. With CacheOptions::overlap a batch is planned, and sometimes
/// run, before the one before it is read back.
class Scheduler {
 public:
  /// Of an engine whose weights have this number.
  using MakeCache = std::function<std::unique_ptr<EngineCache>(std::uint64_t epoch)>;

  /// The models, the schedule and the log must outlive the scheduler. `make_cache` makes the memory of an engine: at
  /// first, and when it starts again. `draft` proposes tokens, `log` gets a line for each event; both may be null.
  Scheduler(const Schedule& schedule, const Model* draft, MakeCache make_cache, std::ostream* log = nullptr);

  /// Serves everything; answers by request id. Throws std::logic_error for a broken invariant of the cache and when
  /// nothing gets on any more.
  [[nodiscard]] std::vector<Answer> run();
  [[nodiscard]] CacheCounts counts() const;
  /// After run(): writes the cache to files.
  void keep() { cache_->shut_down(true); }

 private:
  void apply_events();
  void change_weights(const PlannedEvent& event);
  [[nodiscard]] const Model& target(const Sequence& sequence) const;
  void remove_all();
  void restart(bool keep);
  void admit();
  [[nodiscard]] bool start(Sequence& next);
  /// The sequence is to be a fork of this one, which can get to that point or stands there.
  [[nodiscard]] Sequence* point_of(const Sequence& next);
  /// A sequence waits to be a fork of this one, which stands at that point.
  [[nodiscard]] bool is_forked_now(const Sequence& sequence) const;
  void plan_step();
  /// Throws when nothing gets on. Steps in which a hasty engine only waits count by time.
  void count_step();
  [[nodiscard]] bool try_plan();
  /// Plans a pass and runs it. False: it would have read wrong states, and does not run.
  [[nodiscard]] bool try_step();
  [[nodiscard]] Row next_row(Sequence& sequence, std::int64_t budget) const;
  /// The parents of the row's drafts, if they are a tree.
  [[nodiscard]] std::vector<std::int32_t> draw_parents(const Row& row) const;
  /// The tokens that the row's batch before adds at least; 0 if none is under way.
  [[nodiscard]] std::int64_t adds_at_least(const Sequence& sequence) const;
  [[nodiscard]] Row* under_way(const Sequence& sequence);
  [[nodiscard]] bool forward_all();
  void forward(Row& row);
  /// Where the KV of the step lies, behind the KV of all tokens before it.
  [[nodiscard]] static std::vector<KvIndex> kv_of(const Row& row, std::int64_t step);
  void propose(const Row& row, std::vector<Token>& fed);
  /// Samples behind the last given token, and behind each draft that was sampled.
  void sample(Row& row, const std::vector<Token>& fed, const std::vector<Hidden>& hidden);
  void settle();
  void remove(Sequence& sequence, bool again);
  void stop(Sequence& sequence, RequestEnd how);
  [[nodiscard]] Sequence* running(std::int32_t id);
  template <class... Parts>
  void note(const Parts&... parts);

  const Schedule& schedule_;
  const Model* draft_;
  MakeCache make_cache_;
  std::unique_ptr<EngineCache> cache_;
  CacheCounts past_counts_;  ///< of the caches before
  std::ostream* log_;
  std::uint64_t epoch_ = 0;
  std::array<std::uint64_t, 2> weights_ = {};  ///< their version, by tenant: even ids, odd ids
  std::uint64_t last_weights_ = 0;
  std::int32_t step_ = 0;
  std::int32_t counted_steps_ = 0;
  std::chrono::steady_clock::time_point last_counted_ = std::chrono::steady_clock::now();
  std::deque<Sequence> waiting_;                    ///< those that were preempted first
  std::vector<std::unique_ptr<Sequence>> running_;  ///< in order of admission
  std::vector<std::int32_t> free_slots_;
  std::vector<Row> under_way_;  ///< the batch that has run and is not read back
  bool has_under_way_ = false;
  std::vector<Row> rows_;  ///< the batch that runs next
  bool planned_ = false;   ///< its plan is complete
  std::vector<Answer> answers_;
};

}  // namespace stateport::engine
