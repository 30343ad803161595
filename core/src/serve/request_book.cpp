// SPDX-License-Identifier: Apache-2.0
#include "serve/request_book.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {

namespace {

std::vector<RequestRecord> make_records(const RequestCacheOptions& options) {
  std::vector<RequestRecord> records;
  records.reserve(static_cast<std::size_t>(options.max_requests));
  for (std::int32_t id = 0; id < options.max_requests; ++id) records.emplace_back(options);
  return records;
}

/// What one call can change on the device: a place may lose one content and get another, twice. For readers who come
/// seldom at least `events_min`.
std::size_t device_events(const RequestCacheOptions& options) {
  constexpr std::size_t events_min = 65'536;
  std::size_t places = static_cast<std::size_t>(kv_blocks(options));
  for (std::size_t g = 0; g < group_count(options); ++g)
    places += static_cast<std::size_t>(checkpoint_slots(options, g));
  return std::max(4 * places, events_min);
}

}  // namespace

RequestBook::RequestBook(const RequestCacheOptions& options)
    : options_(options),
      groups_(group_count(options)),
      in_columns_(options.index == CacheIndex::align),
      news_(options.events),
      passes_(options_),
      records_(make_records(options_)),
      states_(records_.size(), groups_),
      check_(options_, records_, passes_),
      after_(groups_),
      ages_(static_cast<std::size_t>(checkpoint_slots(options)), stats_),
      group_commits_(groups_) {
  for (After& after : after_) {
    after.from_scratch.reserve(in_columns_ ? 0 : saves_max(options));
    after.copies.reserve(records_.size());
    after.steps.reserve(records_.size());
  }
  end_copies_.reserve(1);
  inserted_kv_.reserve(request_blocks(options) *
                       static_cast<std::size_t>(options.index == CacheIndex::tree ? options.block_size_tokens : 1));
  free_requests_.reserve(records_.size());
  for (std::int32_t id = options.max_requests; id > 0; --id) free_requests_.push_back(RequestId{id - 1});
  stats_.cost = options.cost;
  if (options.scrub) marks_.emplace(options_, states_);
  for (std::size_t i = 0; marks_ && i < PassQueue::capacity; ++i) marks_->reserve(passes_.at(i));
  if (options.tiers.enabled()) {
    tiers_.emplace(*this, static_cast<LoadTarget&>(*this), records_, stats_, marks_ ? &*marks_ : nullptr,
                   news_.listener());
    news_.set_tiers(tiers_->index());
  }
  news_.reserve(device_events(options) + (tiers_ ? tiers_->index().changes_max() : 0));
}

std::optional<StartedRequest> RequestBook::start(const Prompt& prompt) {
  check_prompt(prompt, options_.max_request_tokens, clock_.least_s());
  if (tiers_) tiers_->check_taken("start");
  if (free_requests_.empty()) {
    now_s_ = clock_.at(prompt.now_s);
    return std::nullopt;
  }
  const RequestId id = free_requests_.back();
  Record& record = records_[id.index()];
  record.id = id;
  record.fill(prompt, options_.block_size_tokens);
  if (marks_) marks_->begin(id, prompt.name_space.salt);
  now_s_ = clock_.at(prompt.now_s);
  const std::optional<Opened> opened = open(id, {.name_space = prompt.name_space, .media = prompt.media});
  if (!opened) {
    if (tiers_) tiers_->end_call(false);
    return std::nullopt;
  }
  free_requests_.pop_back();
  ++running_;
  record.running = true;
  record.computed = opened->reused_tokens;
  StartedRequest started{.request = id, .reused_tokens = opened->reused_tokens, .lost = opened->lost};
  if (tiers_) {
    tiers_->start(id, prompt.search, *opened, started);
  } else {
    if (opened->lost) started.lost_tokens = opened->cached_tokens - opened->reused_tokens;
    stats_.count_lookup(record.prompt_tokens, opened->reused_tokens, opened->cached_tokens, opened->lost);
  }
  const std::int64_t usable_tokens = floor_to(record.prompt_tokens - 1, std::int64_t{options_.block_size_tokens});
  if (!started.lost && !started.load && started.reused_tokens < usable_tokens) started.lost = LostHit::never_stored;
  note_memory(id);
  return started;
}

PromptChunk RequestBook::split(const Record&, std::int64_t, std::int64_t tokens) const {
  return {.tokens = tokens, .least_budget = 1};
}

PromptChunk RequestBook::chunk(RequestId request, std::int64_t budget_tokens) const {
  const Record& record = checked(request);
  require(budget_tokens >= 0, "budget_tokens", budget_tokens, "must not be negative");
  if (tiers_ && tiers_->waits(request)) return {};
  const std::int64_t start = passes_.bounds(request, record.computed, passes_.size()).low;
  if (start >= record.prompt_tokens) return {.tokens = budget_tokens, .least_budget = 1};
  return split(record, start, std::min(budget_tokens, record.prompt_tokens - start));
}

inline void RequestBook::add_row(Pass& pass, std::size_t index, const PassRow& row, std::size_t ahead) {
  const Record& record = records_[row.request.index()];
  const PassQueue::Bounds start = passes_.bounds(row.request, record.computed, ahead);
  const std::int64_t upto = start.high + row.tokens;
  const RowPart part = upto < record.quiet_until ? RowPart::quiet : reserve_row(pass, index, row.request, upto);
  pass.parts[index] = part;
  RowPlan& plan = pass.rows[index];
  plan.request = row.request;
  plan.tokens = row.tokens;
  plan.drafts = row.drafts;
  plan.start = 0;
  plan.room = part != RowPart::none;
  plan.kv = plan.room ? record.kv : KvRow{};
  plan.states = {};
  if (!plan.room) return;
  pass.row_of[row.request.index()] = static_cast<std::int32_t>(index);
  if (pass.ready) pass.place(index, start.low, states_.of(row.request), in_columns_);
}

RowPart RequestBook::reserve_row(Pass& pass, std::size_t index, RequestId request, std::int64_t upto) {
  const bool room = reserve(request, upto);
  note_memory(request);
  ++(room ? pass.busy_rows : pass.without_room);
  if (!room && marks_) records_[request.index()].quiet_until = 0;  // it may have new KV
  if (room) pass.busy.push_back(static_cast<std::uint32_t>(index));
  return room ? RowPart::busy : RowPart::none;
}

PassPlan RequestBook::plan(std::span<const PassRow> rows) {
  const std::size_t limit = options_.overlap ? PassQueue::capacity : 1;
  check_.check_rows(rows, std::min(passes_.size(), limit - 1));
  if (tiers_) {
    tiers_->check_taken("plan");
    for (const PassRow& row : rows)
      require(!tiers_->waits(row.request), "rows.request", row.request, "waits for a load");
  }
  const std::size_t ahead = std::min(passes_.size(), limit - 1);
  if (passes_.size() == limit) drop_newest();
  return plan_rows(rows, ahead, false).view();
}

Pass& RequestBook::plan_rows(std::span<const PassRow> rows, std::size_t ahead, bool inserts) {
  Pass& pass = passes_.next(rows.size());
  pass.id = ++last_pass_;
  pass.inserts = inserts;
  pass.ready = ahead == 0 || passes_.at(0).quiet;
  for (std::size_t i = 0; i < rows.size(); ++i) add_row(pass, i, rows[i], ahead);
  passes_.push();
  if (pass.ready) place_busy_rows(pass);
  if (tiers_) tiers_->end_call(true);
  return pass;
}

/// A pass that nobody runs: it takes memory, saves nothing on its way, and its end is a checkpoint.
std::optional<InsertedPrefix> RequestBook::insert(RequestId request, std::int64_t tokens) {
  const Record& record = checked(request);
  require_state(passes_.size() == 0, "insert", "outstanding passes", passes_.size(), "must be 0");
  if (tiers_) {
    tiers_->check_taken("insert");
    require(!tiers_->waits(request), "request", request, "waits for a load");
  }
  require(tokens > record.computed && tokens <= record.prompt_tokens, "tokens", tokens,
          "must be more than are computed, and not more than the prompt has");
  const PassRow row{.request = request, .tokens = static_cast<std::int32_t>(tokens - record.computed)};
  Pass& pass = plan_rows({&row, 1}, 0, true);
  if (pass.without_room > 0) {
    drop_newest();
    return std::nullopt;
  }
  KvRow& kv = pass.rows[0].kv;
  inserted_kv_.assign(kv.ids.begin(), kv.ids.end());
  kv.ids = inserted_kv_;
  InsertedPrefix inserted{.plan = pass.view(), .commit = {}};
  constexpr std::int32_t sampled = 0;
  inserted.commit = settle_oldest({&sampled, 1}, {});
  return inserted;
}

/// The index may have given the request more memory, or other.
void RequestBook::note_memory(RequestId request) {
  records_[request.index()].kv = kv_of(request);
  std::size_t group = 0;
  for (RowState& state : states_.of(request)) state.slots = slots_of(request, group++);
}

/// The index has its part in placing a row: it may change the state that the row finds, in a copy.
void RequestBook::place_busy_rows(Pass& pass) {
  if (marks_) marks_->place_drafts(pass);
  if (pass.busy_rows == 0) return;
  pass.save_ranges.assign(pass.rows.size() * groups_, SaveRange{});
  pass.states.resize(pass.rows.size() * groups_);
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.is_busy(i)) continue;
    const std::span states = std::span(pass.states).subspan(i * groups_, groups_);
    std::ranges::copy(pass.rows[i].states, states.begin());
    pass.rows[i].states = states;
    place(pass, i);
    if (marks_) marks_->place(pass, i);
  }
  for (std::size_t g = 0; g < groups_; ++g) pass.quiet &= pass.clear[g].empty() && pass.copies[g].empty();
  pass.quiet &= pass.saves.empty();
}

void RequestBook::drop_newest() {
  Pass& pass = passes_.newest();
  if (marks_) marks_->forget(pass);
  unplace(pass);
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.is_busy(i)) continue;
    note_memory(pass.rows[i].request);
    if (marks_) records_[pass.rows[i].request.index()].quiet_until = 0;  // what the pass was to clear is to be named
  }
  passes_.pop_newest();
}

void RequestBook::cancel(PassId pass) {
  require_state(passes_.size() > 0 && passes_.newest().id == pass, "cancel", "pass", pass,
                "is not the newest outstanding pass");
  if (tiers_) tiers_->check_taken("cancel");
  drop_newest();
  if (tiers_) tiers_->end_call(false);
}

/// The index has its part in the row.
void RequestBook::settle_row(Pass& pass, std::size_t index, std::int32_t sampled) {
  Record& record = records_[pass.rows[index].request.index()];
  record.begun = true;
  settle(pass, index, sampled);
  const bool decodes = record.computed >= record.prompt_tokens && record.computed < std::ssize(record.tokens.all());
  const std::int64_t room = std::ssize(record.kv.ids) * record.kv.tokens_per_id;
  const std::int64_t most = std::min(room, options_.max_request_tokens) + 1;
  if (marks_ && !marks_->owns_rest(pass.rows[index].request, record.kv, record.computed)) {
    record.quiet_until = 0;
    return;
  }
  record.quiet_until = decodes ? std::min(quiet_until(pass.rows[index].request), most) : 0;
}

PassCommit RequestBook::commit(PassId id, std::span<const std::int32_t> counts, std::span<const Token> sampled) {
  require_state(passes_.size() > 0 && passes_.at(0).id == id, "commit", "pass", id,
                "is not the oldest outstanding pass");
  if (tiers_) tiers_->check_taken("commit");
  check_.check_counts(counts, std::ssize(sampled));
  return settle_oldest(counts, sampled);
}

PassCommit RequestBook::settle_oldest(std::span<const std::int32_t> counts, std::span<const Token> sampled) {
  Pass& pass = passes_.at(0);
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
    const RowPlan& row = pass.rows[i];
    const std::int32_t count = counts[i];
    records_[row.request.index()].count(row, sampled.subspan(first, static_cast<std::size_t>(count)));
    first += static_cast<std::size_t>(count);
    if (row.drafts > 0 && !in_columns_)
      after_[0].steps.push_back(
          {.row = static_cast<std::int32_t>(i), .live_step = count - 1, .live_slot = row.states[0].target()});
    if (pass.is_busy(i))
      settle_row(pass, i, count);
    else if (in_columns_)
      for (RowState& state : states_.of(row.request)) state.read_bias = accepted_bias(count);
  }
  publish(pass);
  for (std::size_t i = 0; tiers_ && i < pass.rows.size(); ++i)
    if (const RequestId id = pass.rows[i].request; pass.runs(i) && record(id).computed >= record(id).prompt_tokens)
      tiers_->tell_prompt(id, now_s_);
  passes_.pop_oldest();
  const PassCommit commit = take_commit();
  if (tiers_) tiers_->end_call(true);
  return commit;
}

PassCommit RequestBook::take_commit() {
  for (std::size_t g = 0; g < groups_; ++g)
    group_commits_[g] = {.from_scratch = after_[g].from_scratch, .copies = after_[g].copies, .steps = after_[g].steps};
  for (std::size_t g = 0; marks_ && g < groups_; ++g) marks_->copied(g, group_commits_[g]);
  PassCommit result{
      .groups = group_commits_, .published_states = published_, .dropped_states = dropped_, .next = std::nullopt};
  if (passes_.size() > 0 && !passes_.at(0).ready) {
    Pass& next = passes_.at(0);  // it waited for this commit
    next.ready = true;
    for (std::size_t i = 0; i < next.rows.size(); ++i)
      if (const RequestId id = next.rows[i].request; next.runs(i))
        next.place(i, record(id).computed, states_.of(id), in_columns_);
    place_busy_rows(next);
    result.next = next.view();
  }
  return result;
}

CopyPlan RequestBook::end(RequestId request, RequestEnd how, const ReuseHint& hint) {
  static_cast<void>(checked(request));
  require(how >= RequestEnd::finished && how <= RequestEnd::aborted, "how", static_cast<int>(how), "is not an end");
  check_hint(hint);
  if (tiers_) tiers_->check_taken("end");
  if (tiers_ && tiers_->end_later(request)) {  // what is being loaded has to stay
    end_copies_.clear();
    return {};
  }
  if (tiers_) tiers_->stop_asking(request);
  end_copies_.clear();
  const ReuseHint& known = hint == ReuseHint{} ? record(request).hint : hint;
  close(request, how, known);
  if (tiers_ && how != RequestEnd::aborted) tiers_->tell_end(request, known, now_s_);
  passes_.end_request(request);
  records_[request.index()].running = false;
  records_[request.index()].quiet_until = 0;
  free_requests_.push_back(request.next());
  --running_;
  if (tiers_) tiers_->end_call(!end_copies_.empty());
  return end_copies_;
}

HitPlaces RequestBook::places(RequestId request, std::size_t group) const {
  const Record& record = checked(request);
  require(group < groups_, "group", group, "is out of range");
  require_state(!record.begun, "places", "request", request.value(), "has committed a pass: state() says where it is");
  require_state(!tiers_ || !tiers_->waits(request), "places", "request", request.value(), "waits for a load");
  if (record.computed == 0) return {};
  return {.tokens = record.computed, .kv = kv_of(request), .state = hit_slot(request, group)};
}

KvRow RequestBook::kv(RequestId request) const {
  static_cast<void>(checked(request));
  return kv_of(request);
}

RowState RequestBook::state(RequestId request, std::size_t group) const {
  static_cast<void>(checked(request));
  require(group < groups_, "group", group, "is out of range");
  return states_.of(request)[group];
}

void RequestBook::reset() {
  require_state(running_ == 0, "reset", "running_requests", running_, "must be 0");
  if (tiers_) tiers_->check_reset();
  while (passes_.size() > 0) drop_newest();
  forget_all();
  if (tiers_) tiers_->index().reset();
  news_.cleared();
  clock_.restart();
}

std::size_t RequestBook::take_events(std::span<CacheEvent> out) {
  require_state(news_.has_events(), "take_events", "the option events is off");
  return news_.take(out);
}

void RequestBook::check_invariants() const {
  constexpr const char* structure = "RequestCache";
  std::int32_t running = 0;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    running += record.running;
    require_invariant(record.running || record.quiet_until == 0, structure, "a request that ended is quiet");
    if (!record.running) continue;
    require_invariant(record.computed <= std::ssize(record.tokens.all()), structure, "more is computed than known");
    require_invariant(record.prompt_tokens <= std::ssize(record.tokens.all()), structure, "a prompt lost tokens");
    require_invariant(record.quiet_until == 0 || record.computed < std::ssize(record.tokens.all()), structure,
                      "a quiet request has no token to feed");
    const RequestId id = record.id;
    require_invariant(id.valid() && id.index() == i, structure, "a request has the number of another row");
    const auto same = [](const auto& a, const auto& b) { return a.data() == b.data() && a.size() == b.size(); };
    require_invariant(same(record.kv.ids, kv_of(id).ids), structure, "the KV of a request is out of date");
    for (std::size_t g = 0; g < groups_; ++g)
      require_invariant(same(states_.of(id)[g].slots, slots_of(id, g)), structure,
                        "the slots of a state are out of date");
  }
  require_invariant(running == running_, structure, "the number of running requests is wrong");
  require_invariant(free_requests_.size() + static_cast<std::size_t>(running) == records_.size(), structure,
                    "a request number is lost");
  for (std::size_t p = 0; p < passes_.size(); ++p)
    for (std::size_t i = 0; i < passes_.at(p).rows.size(); ++i)
      require_invariant(!passes_.at(p).runs(i) || record(passes_.at(p).rows[i].request).running, structure,
                        "a row outlives its request");
  check_index();
  if (tiers_) tiers_->check_invariants();
}

}  // namespace stateport::detail
