// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <memory>
#include <vector>

#include "cache.hpp"
#include "model.hpp"
#include "schedule.hpp"

namespace stateport::engine {

/// Serves the requests of a schedule: continuous batching, chunked prefill within a token budget, speculative decoding,
/// preemption when room is short, and the schedule's events. Sequences run in the order in which they were admitted;
/// the last one gives way, so the first always gets on.
class Scheduler {
 public:
  /// All must outlive the scheduler. `draft` proposes tokens, `log` gets a line for what happens; both may be null.
  Scheduler(const Schedule& schedule, const Model& target, const Model* draft, EngineCache& cache,
            std::ostream* log = nullptr);

  /// Serves everything; answers by request id. Throws std::logic_error for a broken invariant of the cache and when
  /// nothing gets on any more.
  [[nodiscard]] std::vector<Answer> run();

 private:
  void apply_events();
  void admit();
  void plan_step();
  [[nodiscard]] Row next_row(Sequence& sequence, std::int64_t budget) const;
  void forward(Row& row);
  void propose(const Row& row, std::vector<Token>& fed);
  void finish_rows();
  void remove(Sequence& sequence, bool again);
  void stop(Sequence& sequence, bool aborted);
  [[nodiscard]] Sequence* running(std::int32_t id);
  template <class... Parts>
  void note(const Parts&... parts);

  const Schedule& schedule_;
  const Model& target_;
  const Model* draft_;
  EngineCache& cache_;
  std::ostream* log_;
  KvStore kv_;
  std::int32_t step_ = 0;
  std::deque<Sequence> waiting_;                    ///< those that were preempted first
  std::vector<std::unique_ptr<Sequence>> running_;  ///< in order of admission
  std::vector<std::int32_t> free_slots_;
  std::vector<Row> rows_;
  std::vector<Answer> answers_;
};

}  // namespace stateport::engine
