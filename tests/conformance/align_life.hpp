// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "suite.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stateport::conformance {

/// One pass of a recorded life.
struct LifeStep {
  std::int64_t budget = 0;  ///< of the scheduler; the cache is asked for the chunk unless `foreign_chunk`
  std::int32_t tokens = 0;
  std::int32_t drafts = 0;
  std::int32_t kept = 1;  ///< tokens that the pass samples, where it samples any
  bool foreign_chunk = false;
};

/// The life of one request through make_request_cache() with an index in columns and one group, as an engine drives it:
/// plan, copies, forward, commit, copies. States are simulated: a block holds the number of tokens of its conv and of
/// its recurrent state; copies and passes change these, and every read is checked.
class AlignLife {
 public:
  struct Config {
    CacheIndex index = CacheIndex::hash;
    std::int32_t block = 0;
    std::int32_t drafts = 0;
    bool overlap = false;
    std::int64_t prompt = 0;
    std::size_t steps = 0;  ///< of the life, at most
  };
  explicit AlignLife(const Config& config);

  /// Runs all passes and returns one row of `e2e_scenarios` for each. With overlap a pass is planned before the commit
  /// of the one before it.
  [[nodiscard]] std::vector<Json> run(std::span<const LifeStep> steps);

  /// The registrations of `oracle_runs`: the number of the block by boundary. The recorded engine registers the full
  /// blocks of the row when it schedules a pass, before their states are written. RequestCache publishes a state in the
  /// commit of the pass that writes it. Throws unless it published every state that the recorded engine registered, in
  /// the same block. It publishes more: states whose block leaves the row before the next pass is scheduled.
  [[nodiscard]] Json registered() const;
  /// A state that ends at this boundary is published.
  [[nodiscard]] bool published(std::int64_t boundary) const { return published_.contains(boundary); }

 private:
  struct Held {
    std::int64_t conv = -1;
    std::int64_t recurrent = -1;
  };
  /// An outstanding pass with its row.
  struct Outstanding {
    PassId pass = 0;
    LifeStep step;
    Json row;
  };
  struct Registered {
    std::int32_t block = 0;
    std::int32_t number = 0;
  };

  void plan(const LifeStep& step);
  void enqueue(const PassPlan& plan, Outstanding& pass);
  void register_full(const RowPlan& row);
  void forward(const RowPlan& row);
  [[nodiscard]] Json commit();
  void number_columns(std::span<const std::int32_t> columns);
  void take_published();
  /// Carries out the copies of one plan, at most one. Gives {source column, destination column} and the bias, or nulls.
  [[nodiscard]] std::pair<Json, Json> run_copies(CopyPlan copies, std::span<const std::int32_t> columns);

  Config config_;
  std::unique_ptr<RequestCache> cache_;
  RequestId request_;
  std::deque<Outstanding> outstanding_;
  std::vector<std::int32_t> columns_;             ///< of the last plan
  std::map<std::int32_t, std::int32_t> numbers_;  ///< of the blocks in the row, counted from 1 as they came into it
  std::int32_t last_number_ = 0;
  std::map<std::int32_t, Held> held_;               ///< by block
  std::map<std::int64_t, std::int32_t> published_;  ///< block by boundary
  std::map<std::int64_t, Registered> registered_;   ///< by boundary
};

}  // namespace stateport::conformance
