// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_check.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <utility>

namespace stateport::detail {

/// A request that is quiet runs, decodes and has a token to feed: such a row is right, and needs no check_row().
inline bool BatchCheck::is_quiet(const PassRow& row, std::size_t passes) const noexcept {
  if (row.request.index() >= records_.size()) return false;
  if (row.drafts < 0 || row.drafts > options_.drafts || row.tokens != 1 + row.drafts) return false;
  const RequestRecord& record = records_[row.request.index()];
  if (record.id != row.request) return false;
  return passes_.bounds(row.request, record.computed, passes).high + row.tokens < record.quiet_until;
}

void BatchCheck::check_row(const PassRow& row, std::size_t passes) const {
  check_running(records_, row.request);
  const RequestRecord& record = records_[row.request.index()];
  require(row.tokens >= 1, "tokens", row.tokens, "must be at least 1");
  require(row.drafts >= 0 && row.drafts <= options_.drafts, "drafts", row.drafts, "must be between 0 and the options'");
  require(column_layout(options_).mode != AlignMode::all || row.drafts == 0 || row.drafts == options_.drafts, "drafts",
          row.drafts, "must be none or all in this mode");
  const PassQueue::Bounds start = passes_.bounds(row.request, record.computed, passes);
  require(row.tokens <= options_.max_request_tokens - start.high, "tokens", row.tokens,
          "makes more than max_request_tokens");
  if (start.low < record.prompt_tokens) {
    require(row.drafts == 0, "drafts", row.drafts, "must be 0 in a pass over the prompt");
    require(row.tokens <= record.prompt_tokens - start.low, "tokens", row.tokens, "reaches past the prompt");
    return;
  }
  require(row.tokens == 1 + row.drafts, "tokens", row.tokens, "must be 1 + drafts after the prompt");
  const bool feeds = start.low > record.computed || record.computed < std::ssize(record.tokens.all());
  require_state(feeds, "plan", "request", row.request.value(), "has no token to feed");
}

void BatchCheck::check_rows(std::span<const PassRow> rows, std::size_t passes) {
  require(std::cmp_less_equal(rows.size(), options_.max_requests), "rows", rows.size(), "must be at most max_requests");
  ++batch_;
  busy_.clear();
  for (const PassRow& row : rows) {
    if (!is_quiet(row, passes)) {
      check_row(row, passes);
      busy_.push_back(row);
    }
    std::uint64_t& named = records_[row.request.index()].named;
    require(named != batch_, "request", row.request, "is named twice");
    named = batch_;
  }
}

/// A row samples no token inside its prompt, at most one at the end of it, and after it at most all that it runs.
void BatchCheck::check_counts(std::span<const std::int32_t> counts, std::int64_t sampled) const {
  const Pass& pass = passes_.at(0);
  require(counts.size() == pass.rows.size(), "counts", counts.size(), "must be one for each row of the plan");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const RowPlan& row = pass.rows[i];
    std::int32_t least = 1;
    std::int32_t most = row.tokens;
    if (pass.parts[i] != RowPart::quiet) {
      const std::int64_t beyond = row.start + row.tokens - records_[row.request.index()].prompt_tokens;
      // A pass that was planned ahead feeds the token that the end of the prompt samples.
      const bool fed = passes_.size() > 1 && passes_.at(1).row_of[row.request.index()] >= 0;
      most = !pass.runs(i) || beyond < 0 ? 0 : beyond == 0 ? 1 : row.tokens;
      least = most == 0 || (beyond == 0 && !fed) ? 0 : 1;
    }
    require(counts[i] >= least && counts[i] <= most, "counts", counts[i], "is more or less than the row can sample");
    sum += counts[i];
  }
  require(sampled == sum, "sampled", sampled, "must be as many tokens as the counts say");
}

}  // namespace stateport::detail
