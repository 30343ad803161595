// SPDX-License-Identifier: Apache-2.0
#include "serve/request_book.hpp"

#include <stateport/core/align/align_rules.hpp>
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
  states_.resize(requests * groups_);
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
  note_memory(id);
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
    std::uint64_t& named = records_[row.request.index()].named;
    require(named != batch_, "request", row.request, "is named twice");
    named = batch_;
  }
}

/// A row of the oldest pass can sample so many tokens: none inside the prompt, one at its end, and all after it.
void RequestBook::check_counts(const Pass& pass, std::span<const std::int32_t> counts, std::int64_t sampled) const {
  require(counts.size() == pass.rows.size(), "counts", counts.size(), "must be one for each row of the plan");
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const RowPlan& row = pass.rows[i];
    const std::int64_t end = row.start + row.tokens;
    const std::int64_t prompt = record(row.request).prompt_tokens;
    std::int32_t most = end == prompt ? 1 : row.tokens;
    if (!pass.runs(i) || end < prompt) most = 0;
    // A pass that was planned ahead feeds the token that the end of the prompt samples.
    const bool fed = passes_.size() > 1 && passes_.at(1).row_of[row.request.index()] >= 0;
    const std::int32_t least = most == 0 || (end == prompt && !fed) ? 0 : 1;
    require(counts[i] >= least && counts[i] <= most, "counts", counts[i], "is more or less than the row can sample");
    sum += counts[i];
  }
  require(sampled == sum, "sampled", sampled, "must be as many tokens as the counts say");
}

PassPlan RequestBook::plan(std::span<const PassRow> rows) {
  const std::size_t limit = options_.overlap ? PassQueue::capacity : 1;
  check_rows(rows, std::min(passes_.size(), limit - 1));
  if (passes_.size() == limit) drop_newest();
  Pass& pass = passes_.next(rows.size());
  pass.id = ++last_pass_;
  for (std::size_t i = 0; i < rows.size(); ++i) add_row(pass, i, rows[i]);
  const bool ready = passes_.size() == 0 || passes_.at(0).quiet;
  passes_.push();
  if (ready) place_rows(pass);
  return view(pass);
}

void RequestBook::add_row(Pass& pass, std::size_t index, const PassRow& row) {
  Record& record = records_[row.request.index()];
  const std::int64_t upto = bounds(row.request, passes_.size()).high + row.tokens;
  const bool quiet = upto < record.quiet_until;
  bool room = true;
  if (!quiet) {
    room = reserve(row.request, upto);
    note_memory(row.request);
    pass.busy_rows += room;
    pass.without_room += !room;
  }
  pass.parts[index] = quiet ? RowPart::quiet : room ? RowPart::busy : RowPart::none;
  if (room) pass.row_of[row.request.index()] = static_cast<std::int32_t>(index);
  pass.rows[index] = {.request = row.request,
                      .room = room,
                      .tokens = row.tokens,
                      .drafts = row.drafts,
                      .kv = room ? record.kv : KvRow{}};
}

/// The index may have given the request more memory, or other.
void RequestBook::note_memory(RequestId request) {
  records_[request.index()].kv = kv_of(request);
  for (std::size_t g = 0; g < groups_; ++g) state_at(request, g).slots = slots_of(request, g);
}

void RequestBook::place_rows(Pass& pass) {
  pass.ready = true;
  pass.quiet = true;
  pass.dropped = 0;
  pass.saves.clear();
  for (auto& clear : pass.clear) clear.clear();
  for (auto& copies : pass.copies) copies.clear();
  if (pass.busy_rows > 0) {
    pass.save_ranges.assign(pass.rows.size() * groups_, SaveRange{});
    pass.states.resize(pass.rows.size() * groups_);
  }
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.runs(i)) continue;
    RowPlan& row = pass.rows[i];
    RowState* states = &state_at(row.request);
    row.start = bounds(row.request, passes_.earlier(pass, row.request) != nullptr ? 1 : 0).low;
    pass.quiet &= row.drafts == 0;
    if (pass.is_busy(i)) {
      states = std::copy_n(states, groups_, &pass.states[i * groups_]) - groups_;
      place(pass, i);
    }
    row.states = {states, groups_};
    // A pass ahead that is placed before the commit of this one would read the bias again.
    for (const RowState& state : row.states) pass.quiet &= state.read_bias == 0;
  }
  for (std::size_t g = 0; g < groups_; ++g) pass.quiet &= pass.clear[g].empty() && pass.copies[g].empty();
  pass.quiet &= pass.saves.empty();
}

PassPlan RequestBook::view(Pass& pass) {
  for (std::size_t i = 0; i < pass.states.size() && pass.ready && !pass.saves.empty(); ++i) {
    const auto [first, end] = pass.save_ranges[i];
    pass.states[i].saves = std::span(pass.saves).subspan(first, end - first);
  }
  for (std::size_t g = 0; g < groups_; ++g)
    pass.group_plans[g] = pass.ready ? GroupPlan{.clear = pass.clear[g], .copies = pass.copies[g]} : GroupPlan{};
  return {.pass = pass.id,
          .ready = pass.ready,
          .rows = pass.rows,
          .groups = pass.group_plans,
          .rows_without_room = pass.without_room};
}

void RequestBook::drop_newest() {
  Pass& pass = passes_.newest();
  unplace(pass);
  for (std::size_t i = 0; i < pass.rows.size(); ++i)
    if (pass.is_busy(i)) note_memory(pass.rows[i].request);
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
  check_counts(pass, counts, std::ssize(sampled));
  published_ = 0;
  dropped_ = pass.dropped;
  for (After& after : after_) {
    after.from_scratch.clear();
    after.copies.clear();
    after.steps.clear();
  }
  std::size_t first = 0;
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.runs(i)) continue;
    const auto count = static_cast<std::size_t>(counts[i]);
    settle_row(pass, i, sampled.subspan(first, count));
    first += count;
  }
  publish(pass);
  passes_.pop_oldest();
  return take_commit();
}

void RequestBook::settle_row(Pass& pass, std::size_t index, std::span<const Token> sampled) {
  const RowPlan& row = pass.rows[index];
  Record& record = records_[row.request.index()];
  const auto count = static_cast<std::int32_t>(sampled.size());
  for (const Token token : sampled) record.tokens.push_back(token);
  const std::int32_t accepted = accepted_after_sampling(count);
  record.computed += row.tokens - row.drafts + accepted_bias(accepted);
  const bool in_columns = options_.index == CacheIndex::align;
  if (row.drafts > 0 && !in_columns)
    after_[0].steps.push_back(
        {.row = static_cast<std::int32_t>(index), .live_step = count - 1, .live_slot = state_at(row.request).target()});
  if (pass.is_busy(index)) {
    settle(pass, index, count);
    const bool decodes = record.computed >= record.prompt_tokens;
    const std::int64_t room = std::ssize(record.kv.ids) * record.kv.tokens_per_id;
    record.quiet_until = decodes ? std::min(quiet_until(row.request), room + 1) : 0;
  } else if (in_columns) {
    for (std::size_t g = 0; g < groups_; ++g) state_at(row.request, g).read_bias = accepted_bias(accepted);
  }
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
  return state_at(request, group);
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
    const RequestId id{static_cast<std::int32_t>(i)};
    const auto same = [](const auto& a, const auto& b) { return a.data() == b.data() && a.size() == b.size(); };
    require_invariant(same(record.kv.ids, kv_of(id).ids), structure, "the KV of a request is out of date");
    for (std::size_t g = 0; g < groups_; ++g)
      require_invariant(same(state_at(id, g).slots, slots_of(id, g)), structure, "the slots of a state are out of date");
  }
  require_invariant(running == running_, structure, "the number of running requests is wrong");
  require_invariant(free_requests_.size() + static_cast<std::size_t>(running) == records_.size(), structure,
                    "a request number is lost");
  for (std::size_t p = 0; p < passes_.size(); ++p)
    for (std::size_t i = 0; i < passes_.at(p).rows.size(); ++i)
      require_invariant(!passes_.at(p).runs(i) || record(passes_.at(p).rows[i].request).running, structure,
                        "a row outlives its request");
  check_index();
}

}  // namespace stateport::detail
