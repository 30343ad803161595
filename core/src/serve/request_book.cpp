// SPDX-License-Identifier: Apache-2.0
#include "serve/request_book.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <numeric>

namespace stateport::detail {

RequestBook::RequestBook(const RequestCacheOptions& options)
    : options_(options),
      groups_(group_count(options)),
      events_(options.events),
      passes_(static_cast<std::size_t>(options.max_requests), groups_),
      after_(groups_),
      group_commits_(groups_) {
  const auto requests = static_cast<std::size_t>(options.max_requests);
  records_.resize(requests);
  named_.resize(requests, 0);
  for (std::int32_t id = options.max_requests; id > 0; --id) free_requests_.push_back(RequestId{id - 1});
  stats_.cost = options.cost;
}

const RequestBook::Record& RequestBook::checked(RequestId request) const {
  require(request.valid() && request.index() < records_.size() && records_[request.index()].running, "request", request,
          "is not running");
  return records_[request.index()];
}

std::optional<StartedRequest> RequestBook::start(const Prompt& prompt) {
  check_prompt(prompt, options_.max_request_tokens, now_s_);
  now_s_ = prompt.now_s;
  if (free_requests_.empty()) return std::nullopt;
  const RequestId id = free_requests_.back();
  Record& record = records_[id.index()];
  record.fill(prompt);
  const std::optional<Opened> opened = open(id, prompt.now_s);
  if (!opened) return std::nullopt;
  free_requests_.pop_back();
  ++running_;
  record.running = true;
  record.computed = opened->reused_tokens;
  const std::int64_t lost = opened->lost ? opened->cached_tokens - opened->reused_tokens : 0;
  stats_.count_lookup(record.prompt_tokens, opened->reused_tokens, opened->cached_tokens, opened->lost);
  return StartedRequest{
      .request = id, .reused_tokens = opened->reused_tokens, .lost_tokens = lost, .lost = opened->lost};
}

std::int64_t RequestBook::split(const Record&, std::int64_t, std::int64_t tokens) const {
  return tokens;
}

std::int64_t RequestBook::chunk(RequestId request, std::int64_t budget_tokens) const {
  const Record& record = checked(request);
  require(budget_tokens >= 0, "budget_tokens", budget_tokens, "must not be negative");
  const std::int64_t start = bounds(request, passes_.size()).low;
  if (start >= record.prompt_tokens) return budget_tokens;
  return split(record, start, std::min(budget_tokens, record.prompt_tokens - start));
}

void RequestBook::check_row(const PassRow& row, std::size_t passes) const {
  const Record& record = checked(row.request);
  require(row.tokens >= 1, "tokens", row.tokens, "must be at least 1");
  require(row.drafts >= 0 && row.drafts <= options_.drafts, "drafts", row.drafts, "must be between 0 and the options'");
  require(options_.index != CacheIndex::align || options_.align_mode != AlignMode::all || row.drafts == 0 ||
              row.drafts == options_.drafts,
          "drafts", row.drafts, "must be none or all in this mode");
  const PassQueue::Bounds start = bounds(row.request, passes);
  require(row.tokens <= options_.max_request_tokens - start.high, "tokens", row.tokens,
          "makes more than max_request_tokens");
  if (start.low < record.prompt_tokens) {
    require(row.drafts == 0, "drafts", row.drafts, "must be 0 in a pass over the prompt");
    require(row.tokens <= record.prompt_tokens - start.low, "tokens", row.tokens, "reaches past the prompt");
    return;
  }
  require(row.tokens == 1 + row.drafts, "tokens", row.tokens, "must be 1 + drafts after the prompt");
  const bool feeds = start.low > record.computed || record.computed < std::ssize(record.tokens);
  require_state(feeds, "plan", "request", row.request.value(), "has no token to feed");
}

void RequestBook::check_rows(std::span<const PassRow> rows, std::size_t passes) {
  require(rows.size() <= records_.size(), "rows", rows.size(), "must be at most max_requests");
  ++batch_;
  for (const PassRow& row : rows) {
    check_row(row, passes);
    std::uint64_t& named = named_[row.request.index()];
    require(named != batch_, "request", row.request, "is named twice");
    named = batch_;
  }
}

PassPlan RequestBook::plan(std::span<const PassRow> rows) {
  const std::size_t limit = options_.overlap ? PassQueue::capacity : 1;
  check_rows(rows, std::min(passes_.size(), limit - 1));
  if (passes_.size() == limit) drop_newest();
  Pass& pass = passes_.next();
  pass.id = ++last_pass_;
  for (const PassRow& row : rows) add_row(pass, row);
  const bool ready = passes_.size() == 0 || passes_.at(0).quiet;
  passes_.push();
  if (ready) place_rows(pass);
  return view(pass);
}

void RequestBook::add_row(Pass& pass, const PassRow& row) {
  const bool room = reserve(row.request, bounds(row.request, passes_.size()).high + row.tokens);
  if (room) pass.row_of[row.request.index()] = static_cast<std::int32_t>(pass.rows.size());
  pass.rows.push_back({.request = row.request,
                       .tokens = row.tokens,
                       .drafts = row.drafts,
                       .prompt_tokens = record(row.request).prompt_tokens,
                       .runs = room,
                       .room = room});
  pass.without_room += !room;
}

void RequestBook::place_rows(Pass& pass) {
  pass.ready = true;
  pass.quiet = true;
  pass.dropped = 0;
  pass.saves.clear();
  pass.save_ranges.resize(pass.rows.size() * groups_);
  pass.states.resize(pass.rows.size() * groups_);
  for (auto& clear : pass.clear) clear.clear();
  for (auto& copies : pass.copies) copies.clear();
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    PlannedRow& row = pass.rows[i];
    if (!row.runs) {
      std::fill_n(pass.save_ranges.begin() + static_cast<std::ptrdiff_t>(i * groups_), groups_, SaveRange{});
      continue;
    }
    row.start = bounds(row.request, passes_.earlier(pass, row.request) != nullptr ? 1 : 0).low;
    pass.quiet &= row.drafts == 0;
    place(pass, i);
  }
  for (std::size_t g = 0; g < groups_; ++g) pass.quiet &= pass.clear[g].empty() && pass.copies[g].empty();
  pass.quiet &= pass.saves.empty();
}

PassPlan RequestBook::view(Pass& pass) {
  pass.row_plans.resize(pass.rows.size());
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    const PlannedRow& row = pass.rows[i];
    RowPlan& plan = pass.row_plans[i];
    plan = {.request = row.request, .room = row.room, .tokens = row.tokens, .drafts = row.drafts};
    if (!row.runs) continue;
    plan.kv = kv_of(row.request);
    if (!pass.ready) continue;
    plan.start = row.start;
    plan.states = {pass.states.data() + i * groups_, groups_};
  }
  for (std::size_t i = 0; i < pass.states.size() && pass.ready && !pass.saves.empty(); ++i) {
    const auto [first, end] = pass.save_ranges[i];
    pass.states[i].saves = std::span(pass.saves).subspan(first, end - first);
  }
  for (std::size_t g = 0; g < groups_; ++g)
    pass.group_plans[g] = pass.ready ? GroupPlan{.clear = pass.clear[g], .copies = pass.copies[g]} : GroupPlan{};
  return {.pass = pass.id,
          .ready = pass.ready,
          .rows = pass.row_plans,
          .groups = pass.group_plans,
          .rows_without_room = pass.without_room};
}

void RequestBook::drop_newest() {
  unplace(passes_.newest());
  passes_.pop_newest();
}

void RequestBook::cancel(PassId pass) {
  require_state(passes_.size() > 0 && passes_.newest().id == pass, "cancel", "pass", pass,
                "is not the newest outstanding pass");
  drop_newest();
}

PassCommit RequestBook::commit(PassId id, std::span<const std::int32_t> counts, std::span<const Token> sampled) {
  require_state(passes_.size() > 0 && passes_.at(0).id == id, "commit", "pass", id,
                "is not the oldest outstanding pass");
  Pass& pass = passes_.at(0);
  check_counts(pass, passes_.size() > 1 ? &passes_.at(1) : nullptr, counts, std::ssize(sampled));
  published_ = 0;
  dropped_ = pass.dropped;
  for (After& after : after_) {
    after.from_scratch.clear();
    after.copies.clear();
    after.steps.clear();
  }
  std::size_t first = 0;
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    const PlannedRow& row = pass.rows[i];
    if (!row.runs) continue;
    Record& record = records_[row.request.index()];
    const auto count = static_cast<std::size_t>(counts[i]);
    const auto tokens = sampled.subspan(first, count);
    record.tokens.insert(record.tokens.end(), tokens.begin(), tokens.end());
    first += count;
    record.computed += row.tokens - row.drafts + std::max(counts[i] - 1, 0);
    settle(pass, i, counts[i]);
  }
  publish(pass);
  passes_.pop_oldest();
  return take_commit();
}

PassCommit RequestBook::take_commit() {
  for (std::size_t g = 0; g < groups_; ++g)
    group_commits_[g] = {.from_scratch = after_[g].from_scratch, .copies = after_[g].copies, .steps = after_[g].steps};
  PassCommit result{
      .groups = group_commits_, .published_states = published_, .dropped_states = dropped_, .next = std::nullopt};
  if (passes_.size() > 0 && !passes_.at(0).ready) {
    place_rows(passes_.at(0));
    result.next = view(passes_.at(0));
  }
  return result;
}

void RequestBook::end(RequestId request, RequestEnd how, const ReuseHint& hint) {
  static_cast<void>(checked(request));
  require(how >= RequestEnd::finished && how <= RequestEnd::aborted, "how", static_cast<int>(how), "is not an end");
  check_hint(hint);
  close(request, how, hint);
  passes_.end_request(request);
  records_[request.index()].running = false;
  free_requests_.push_back(request);
  --running_;
}

KvRow RequestBook::kv(RequestId request) const {
  static_cast<void>(checked(request));
  return kv_of(request);
}

RowState RequestBook::state(RequestId request, std::size_t group) const {
  static_cast<void>(checked(request));
  require(group < groups_, "group", group, "is out of range");
  return state_of(request, group);
}

void RequestBook::reset() {
  require_state(running_ == 0, "reset", "running_requests", running_, "must be 0");
  while (passes_.size() > 0) drop_newest();
  forget_all();
  events_.push({.kind = CacheEvent::Kind::cleared});
}

std::size_t RequestBook::take_events(std::span<CacheEvent> out) {
  require_state(events_.on(), "take_events", "RequestCacheOptions::events is off");
  return events_.take(out);
}

void RequestBook::check_invariants() const {
  constexpr const char* structure = "RequestCache";
  std::int32_t running = 0;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    running += record.running;
    if (!record.running) continue;
    require_invariant(record.computed <= std::ssize(record.tokens), structure, "more is computed than known");
    require_invariant(record.prompt_tokens <= std::ssize(record.tokens), structure, "a prompt lost tokens");
  }
  require_invariant(running == running_, structure, "the number of running requests is wrong");
  require_invariant(free_requests_.size() + static_cast<std::size_t>(running) == records_.size(), structure,
                    "a request number is lost");
  for (std::size_t p = 0; p < passes_.size(); ++p)
    for (const PlannedRow& row : passes_.at(p).rows)
      require_invariant(!row.runs || records_[row.request.index()].running, structure, "a row outlives its request");
  check_index();
}

}  // namespace stateport::detail
