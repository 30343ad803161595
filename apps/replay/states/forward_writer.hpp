// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_types.hpp>

#include "states/pass_mover.hpp"
#include "workload/content.hpp"
#include "workload/sequence.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// Names the states that the forward of a planned pass reads and writes, row by row.
class ForwardWriter {
 public:
  /// `history`: conv tokens of a state without drafts, at least 1.
  explicit ForwardWriter(std::int32_t history) : history_(history) {}

  void clear();
  /// A row of one group that runs. With drafts the sequence goes on behind its start with `sampled` tokens; further
  /// drafts are not kept.
  void add(const RowPlan& row, const RowState& state, std::int32_t sampled, const Sequence& names);
  /// Valid until the next change.
  [[nodiscard]] PassForward forward() const noexcept {
    return {.saves = saves_, .targets = targets_, .recurrent_out = outs_, .window = window_};
  }
  /// The prefixes that end at the last tokens of the state after `tokens` tokens, for PassMover::check. Valid until the
  /// next call.
  [[nodiscard]] std::span<const Content> window_of(const Sequence& names, std::int64_t tokens);

 private:
  [[nodiscard]] StateWrite completed(StateWrite write, std::span<const std::int32_t> out, const Sequence& names,
                                     std::int64_t tokens, std::int64_t kept);

  std::int32_t history_;
  std::uint64_t rejected_ = 0;  ///< names of drafts that were not kept
  std::vector<StateWrite> saves_;
  std::vector<StateWrite> targets_;
  std::vector<std::int32_t> outs_;
  std::vector<Content> window_;
  std::vector<Content> ending_;
};

}  // namespace stateport::replay
