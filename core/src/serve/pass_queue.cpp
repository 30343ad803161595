// SPDX-License-Identifier: Apache-2.0
#include "serve/pass_queue.hpp"

#include "serve/request_options.hpp"

namespace stateport::detail {

PassPlan Pass::view() {
  for (std::size_t i = 0; i < states.size() && ready && !saves.empty(); ++i) {
    const auto [first, end] = save_ranges[i];
    states[i].saves = std::span(saves).subspan(first, end - first);
  }
  for (std::size_t g = 0; g < group_plans.size(); ++g)
    group_plans[g] = ready ? GroupPlan{.clear = clear[g], .copies = copies[g]} : GroupPlan{};
  PassPlan plan{.pass = id, .ready = ready, .rows = rows, .groups = group_plans, .rows_without_room = without_room};
  if (!ready) return plan;
  plan.scrub = {.kv_blocks = scrub_kv, .scratch = scrub_scratch, .draft_rows = scrub_draft_rows};
  plan.fork_copies = fork_copies;
  return plan;
}

PassQueue::PassQueue(const RequestCacheOptions& options) {
  const auto requests = static_cast<std::size_t>(options.max_requests);
  const std::size_t groups = group_count(options);
  const std::size_t saves = saves_max(options);
  for (Pass& pass : passes_) {
    pass.saves.reserve(saves);
    pass.save_slots.reserve(saves);
    pass.rows.reserve(requests);
    pass.parts.reserve(requests);
    pass.fork_copies.reserve(requests);
    pass.parents.reserve(requests * static_cast<std::size_t>(options.drafts));
    pass.paths.reserve(requests * (static_cast<std::size_t>(options.drafts) + 1));
    pass.row_of.resize(index_rows(options), -1);
    pass.states.reserve(requests * groups);
    pass.columns.resize(requests * groups);
    pass.save_ranges.reserve(requests * groups);
    pass.clear.resize(groups);
    pass.copies.resize(groups);
    for (auto& clear : pass.clear) clear.reserve(requests);
    for (auto& copies : pass.copies) copies.reserve(requests);
    pass.group_plans.resize(groups);
  }
}

Pass& PassQueue::next(std::size_t rows) {
  Pass& pass = at(count_);
  pass.rows.resize(rows);
  pass.parts.resize(rows);
  pass.busy_rows = 0;
  pass.saves.clear();
  pass.save_slots.clear();
  pass.fork_copies.clear();
  pass.parents.clear();
  pass.paths.clear();
  pass.scrub_kv.clear();
  pass.scrub_scratch.clear();
  pass.scrub_draft_rows.clear();
  pass.without_room = 0;
  pass.dropped = 0;
  pass.ready = false;
  pass.inserts = false;
  pass.quiet = true;
  for (auto& clear : pass.clear) clear.clear();
  for (auto& copies : pass.copies) copies.clear();
  return pass;
}

void PassQueue::forget_rows(Pass& pass) noexcept {
  for (const RowPlan& row : pass.rows) pass.row_of[row.request.index()] = -1;
}

void PassQueue::pop_oldest() noexcept {
  forget_rows(at(0));
  first_ = (first_ + 1) % capacity;
  --count_;
  if (count_ == 0) first_ = 0;  // the memory that is in the caches
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
    if (row < 0) continue;
    const auto index = static_cast<std::size_t>(row);
    at(i).parts[index] = RowPart::none;
    at(i).rows[index].kv = {};
    at(i).rows[index].states = {};
    row = -1;
  }
}

}  // namespace stateport::detail
