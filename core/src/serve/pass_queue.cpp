// SPDX-License-Identifier: Apache-2.0
#include "serve/pass_queue.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::detail {

void check_counts(const Pass& pass, const Pass* next, std::span<const std::int32_t> counts, std::int64_t sampled) {
  require(counts.size() == pass.rows.size(), "counts", counts.size(), "must be one for each row of the plan");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const PlannedRow& row = pass.rows[i];
    const std::int64_t end = row.start + row.tokens;
    std::int32_t most = end == row.prompt_tokens ? 1 : row.tokens;
    if (!row.runs || end < row.prompt_tokens) most = 0;
    // A pass that was planned ahead feeds the token that the end of the prompt samples.
    const bool fed = next != nullptr && next->row_of[row.request.index()] >= 0;
    const std::int32_t least = most == 0 || (end == row.prompt_tokens && !fed) ? 0 : 1;
    require(counts[i] >= least && counts[i] <= most, "counts", counts[i], "is more or less than the row can sample");
    sum += counts[i];
  }
  require(sampled == sum, "sampled", sampled, "must be as many tokens as the counts say");
}

PassQueue::PassQueue(std::size_t requests, std::size_t groups) {
  for (Pass& pass : passes_) {
    pass.rows.reserve(requests);
    pass.row_of.resize(requests, -1);
    pass.states.reserve(requests * groups);
    pass.align.resize(requests * groups);
    pass.save_ranges.reserve(requests * groups);
    pass.row_plans.reserve(requests);
    pass.clear.resize(groups);
    pass.copies.resize(groups);
    pass.group_plans.resize(groups);
  }
}

Pass& PassQueue::next() noexcept {
  Pass& pass = at(count_);
  pass.rows.clear();
  pass.saves.clear();
  pass.without_room = 0;
  pass.dropped = 0;
  pass.ready = false;
  pass.quiet = false;
  return pass;
}

void PassQueue::forget_rows(Pass& pass) noexcept {
  for (const PlannedRow& row : pass.rows) pass.row_of[row.request.index()] = -1;
}

void PassQueue::pop_oldest() noexcept {
  forget_rows(at(0));
  first_ = (first_ + 1) % capacity;
  --count_;
}

void PassQueue::pop_newest() noexcept {
  forget_rows(newest());
  --count_;
}

bool PassQueue::in_flight(RequestId request) const noexcept {
  for (std::size_t i = 0; i < count_; ++i)
    if (at(i).ready && at(i).row_of[request.index()] >= 0) return true;
  return false;
}

void PassQueue::end_request(RequestId request) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    std::int32_t& row = at(i).row_of[request.index()];
    if (row >= 0) at(i).rows[static_cast<std::size_t>(row)].runs = false;
    row = -1;
  }
}

}  // namespace stateport::detail
