// SPDX-License-Identifier: Apache-2.0
#include "serve/request_life.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/checkpoint_placement.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {

namespace {

/// The largest number of changes on the device in one call: a place may lose one content and get another, twice. At
/// least `events_min`, for engines that take events seldom.
std::size_t device_events(const RequestCacheOptions& options) {
  constexpr std::size_t events_min = 65'536;
  std::size_t places = static_cast<std::size_t>(kv_blocks(options));
  for (std::size_t g = 0; g < group_count(options); ++g)
    places += static_cast<std::size_t>(checkpoint_slots(options, g));
  return std::max(4 * places, events_min);
}

constexpr const char* waits_text = "waits for a load, for another request, or until its forks have begun";
constexpr const char* fork_text = "is a fork";

/// Counts the named positions that the row, part of a prompt, ran over.
void count_breakpoints(RequestBook& book, const RequestIndex& index, const RowPlan& row) {
  std::int64_t before = row.start;
  for (const std::int64_t at : book.asked_breakpoints_of(row.request)) {
    if (at > row.start + row.tokens) return;
    if (at <= before) continue;
    before = at;
    const bool kept = index.has_state(row.request, at);
    ++(kept ? book.stats.breakpoints_kept : book.stats.breakpoints_refused);
    if (!kept) book.refused.push_back({.request = row.request, .tokens = at});
  }
}

/// Blocks of KV that the prompts of the pass have yet to take.
std::int64_t expected_blocks(const RequestBook& book, const Pass& pass) {
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.runs(i)) continue;
    const RequestRecord& record = book.record(pass.rows[i].request);
    const std::int64_t missing = record.prompt_tokens - std::ssize(record.kv.ids) * record.kv.tokens_per_id;
    blocks += ceil_div(std::max<std::int64_t>(missing, 0), std::int64_t{book.options.block_size_tokens});
  }
  return blocks;
}

/// A pass over the prompt began at `start`.
void note_tail(RequestBook& book, RequestRecord& record, std::int64_t start) {
  const std::int64_t tail = book.tails.learned_tokens();
  if (tail == 0 || record.stale) return;
  const TailUse::Places places = tail_places(book, record.id, tail, start);
  if (start < places.before_tail) record.pass_before_tail = start;
  if (record.computed >= record.prompt_tokens) book.tails.note_computed(record, places);
}

/// Evicts and decides moves at the end of a call, before tiers answer it: what it evicts is stored by the same answer.
void move_memory(RequestBook& book, MemoryArena& arena, std::optional<MemoryPart> without_room = std::nullopt) {
  book.ask_for_nobody();
  for (std::size_t part = 0; part < book.lack.size(); ++part)
    if (const std::int32_t numbers = std::exchange(book.lack[part], 0); numbers > 0)
      arena.note_lack(static_cast<MemoryPart>(part), numbers);
  for (std::size_t part = 0; part < book.need.size(); ++part)
    arena.note_need(static_cast<MemoryPart>(part), std::exchange(book.need[part], 0));
  arena.balance(without_room);
}

/// After tiers have answered: their transfers come before the copies of KV, and read it from where it lay.
void note_moved_kv(RequestBook& book, MemoryArena& arena, TenantMarks* marks) {
  if (arena.kv_copies().empty()) return;
  book.news.kv_moved(arena.moved_to());
  if (marks != nullptr) marks->kv_moved(arena.kv_copies());
}

}  // namespace

RequestLife::RequestLife(const RequestCacheOptions& options)
    : book_(options),
      index_(make_request_index(book_)),
      lookups_(book_, *index_),
      forks_(book_, *index_),
      trees_(book_.options),
      check_(book_.options, book_.records, book_.passes),
      group_commits_(book_.groups),
      marks_(options.scrub ? std::make_optional<TenantMarks>(book_.options, book_.states) : std::nullopt),
      busy_rows_(book_, *index_, forks_, marks_ ? &*marks_ : nullptr) {
  const auto ids_of_block = static_cast<std::size_t>(options.index == CacheIndex::tree ? options.block_size_tokens : 1);
  inserted_kv_.reserve(request_blocks(options) * ids_of_block);
  free_requests_.reserve(static_cast<std::size_t>(options.max_requests));
  for (std::int32_t id = options.max_requests; id > 0; --id) free_requests_.push_back(RequestId{id - 1});
  for (std::size_t i = 0; marks_ && i < PassQueue::capacity; ++i) marks_->reserve(book_.passes.at(i));
  if (options.tiers.enabled()) {
    tiers_.emplace(*this, book_, *index_, marks_ ? &*marks_ : nullptr, lookups_.prefix_waits());
    lookups_.set_tiers(*tiers_);
    book_.news.set_tiers(tiers_->index());
  }
  epochs_.emplace(book_, *index_, tiers_ ? &*tiers_ : nullptr);
  if (options.prefixes.pins > 0 || options.prefixes.prefetches > 0) {
    prefixes_.emplace(book_, *index_, *epochs_, clock_, tiers_ ? &*tiers_ : nullptr, marks_ ? &*marks_ : nullptr);
    epochs_->set_holder(*prefixes_);
  }
  if (book_.checks) integrity_.emplace(book_, *index_, tiers_ ? &*tiers_ : nullptr, prefixes_ ? &*prefixes_ : nullptr);
  if (book_.tenants) book_.tenants->set_index(*index_);
  if (slot_layout(options).arena.bytes > 0) arena_.emplace(book_.options, *book_.elastic, marks_ ? &*marks_ : nullptr);
  book_.news.reserve(device_events(options) + (tiers_ ? tiers_->index().changes_max() : 0));
}

std::optional<StartedRequest> RequestLife::start(const Prompt& prompt) {
  check_prompt(prompt, book_.options.max_request_tokens, clock_.least_s());
  require(prompt.breakpoints.empty() || !book_.in_columns || book_.columns.mode != AlignMode::none, "breakpoints",
          prompt.breakpoints.size(), "positions are named, and mode none keeps no state that is found again");
  book_.now_s = clock_.at(prompt.now_s);
  if (prefixes_) prefixes_->end_leases();
  if (free_requests_.empty()) return std::nullopt;
  const RequestId id = free_requests_.back();
  RequestRecord& record = book_.records[id.index()];
  record.id = id;
  const Namespace name_space = epochs_->name_of(prompt.name_space);
  record.fill(prompt, name_space, book_.options.block_size_tokens);
  book_.set_breakpoints(id, prompt.breakpoints);
  if (marks_) marks_->begin(id, prompt.name_space.salt);
  if (book_.tenants) book_.tenants->begin(id, prompt.name_space.salt);
  if (book_.sessions) book_.sessions->begin(id, prompt.hint.session, book_.now_s);
  const std::optional<OpenedPrompt> opened = index_->open(id, {.name_space = name_space, .media = prompt.media});
  if (!opened) {
    if (tiers_) tiers_->end_call();
    return std::nullopt;
  }
  free_requests_.pop_back();
  ++book_.running;
  naming_requests_ += !prompt.breakpoints.empty();
  record.running = true;
  return lookups_.start(id, prompt.search, *opened);
}

std::optional<StartedRequest> RequestLife::refresh(RequestId request) {
  const RequestRecord& record = check_running(book_.records, request);
  require_state(!record.begun, "refresh", "request", request.value(), "has committed a pass");
  require_state(!record.is_fork, "refresh", "request", request.value(), fork_text);
  require_state(!book_.passes.has(request), "refresh", "request", request.value(), "is in an outstanding pass");
  return lookups_.refresh(request);
}

bool RequestLife::fork(RequestId request, std::span<const Token> tokens, std::span<RequestId> forks) {
  const RequestRecord& point = check_running(book_.records, request);
  forks_.check(point, tokens, forks.size());
  if (forks.size() > free_requests_.size()) return false;
  const std::size_t each = tokens.size() / forks.size();
  for (std::size_t i = 0; i < forks.size(); ++i) {
    const RequestId id = forks[i] = free_requests_.back();
    free_requests_.pop_back();
    RequestRecord& fork = book_.records[id.index()];
    fork.id = id;
    forks_.start(fork, point, tokens.subspan(i * each, each));
    if (marks_) marks_->begin_as(id, request);
    if (book_.tenants) book_.tenants->begin_as(id, request);
    if (book_.sessions) book_.sessions->begin(id, fork.hint.session, book_.now_s);
    if (tiers_) tiers_->fork(id);
    ++book_.running;
    ++book_.stats.forks;
    fork.running = true;
  }
  return true;
}

PromptChunk RequestLife::chunk(RequestId request, std::int64_t budget_tokens) const {
  const RequestRecord& record = check_running(book_.records, request);
  require(budget_tokens >= 0, "budget_tokens", budget_tokens, "must not be negative");
  if (waits(request)) return {};
  const std::int64_t start = book_.passes.bounds(request, record.computed, book_.passes.size()).low;
  if (start >= record.prompt_tokens) return {.tokens = budget_tokens, .least_budget = 1};
  return index_->split(record, start, std::min(budget_tokens, record.prompt_tokens - start));
}

PassPlan RequestLife::plan(std::span<const PassRow> rows, std::span<const std::int32_t> parents) {
  const std::size_t limit = book_.options.overlap ? PassQueue::capacity : 1;
  check_.check_rows(rows, std::min(book_.passes.size(), limit - 1));
  trees_.check_parents(rows, parents);
  for (std::size_t i = 0; (lookups_.can_wait() || forks_.any()) && i < rows.size(); ++i)
    require(!waits(rows[i].request), "rows.request", rows[i].request, waits_text);
  if (book_.passes.size() == limit) busy_rows_.drop_newest();
  if (arena_) arena_->begin_call();
  Pass& pass = plan_rows(rows, false);
  pass.parents.assign(parents.begin(), parents.end());
  PassPlan plan = pass.view();
  plan.transfers = take_transfers();
  if (arena_ && pass.without_room > 0) plan.memory = arena_->take();
  return plan;
}

Pass& RequestLife::plan_rows(std::span<const PassRow> rows, bool inserts) {
  const std::size_t ahead = book_.passes.size();
  Pass& pass = book_.passes.next(rows.size());
  pass.id = ++last_pass_;
  pass.inserts = inserts;
  pass.ready = ahead == 0 || book_.passes.at(0).quiet;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PassRow& row = rows[i];
    const RequestRecord& record = book_.records[row.request.index()];
    const PassQueue::Bounds start = book_.passes.bounds(row.request, record.computed, ahead);
    const std::int64_t upto = start.high + row.tokens;
    const RowPart part = upto < record.quiet_until ? RowPart::quiet : busy_rows_.reserve(pass, row.request, upto);
    pass.parts[i] = part;
    RowPlan& plan = pass.rows[i];
    plan.request = row.request;
    plan.tokens = row.tokens;
    plan.drafts = row.drafts;
    plan.room = part != RowPart::none;
    if (!pass.ready || !plan.room) {
      plan.start = 0;
      plan.states = {};
    }
    if (!plan.room) {
      plan.kv = {};
      continue;
    }
    plan.kv = record.kv;
    pass.row_of[row.request.index()] = static_cast<std::int32_t>(i);
    if (pass.ready) pass.place(i, start.low, book_.states.of(row.request), book_.in_columns);
  }
  book_.passes.push();
  if (pass.ready) busy_rows_.place(pass);
  end_points();
  if (arena_ && pass.without_room > 0) move_memory(book_, *arena_, MemoryPart::kv);
  if (tiers_) tiers_->end_call();
  return pass;
}

/// A pass that is not run: it takes memory, saves nothing on its way, and its end is a checkpoint.
std::optional<InsertedPrefix> RequestLife::insert(RequestId request, std::int64_t tokens) {
  const RequestRecord& record = check_running(book_.records, request);
  require_state(book_.passes.size() == 0, "insert", "outstanding passes", book_.passes.size(), "must be 0");
  require(!waits(request), "request", request, waits_text);
  require(tokens > record.computed && tokens <= record.prompt_tokens, "tokens", tokens,
          "must be more than are computed, and not more than the prompt has");
  const PassRow row{.request = request, .tokens = static_cast<std::int32_t>(tokens - record.computed)};
  if (arena_) arena_->begin_call();
  Pass& pass = plan_rows({&row, 1}, true);
  if (pass.without_room > 0) {
    busy_rows_.drop_newest();
    if (tiers_) tiers_->end_call();
    return std::nullopt;
  }
  KvRow& kv = pass.rows[0].kv;
  inserted_kv_.assign(kv.ids.begin(), kv.ids.end());
  kv.ids = inserted_kv_;
  InsertedPrefix inserted{.plan = pass.view(), .commit = {}};
  constexpr std::int32_t sampled = 0;
  inserted.commit = settle_oldest({&sampled, 1}, {});
  inserted.plan.transfers = take_transfers();
  return inserted;
}

void RequestLife::cancel(PassId pass) {
  require_state(book_.passes.size() > 0 && book_.passes.newest().id == pass, "cancel", "pass", pass,
                "is not the newest outstanding pass");
  busy_rows_.drop_newest();
  if (tiers_) tiers_->end_call();
}

/// The index has its part in the row.
void RequestLife::settle_row(Pass& pass, std::size_t index, std::int32_t sampled) {
  RequestRecord& record = book_.records[pass.rows[index].request.index()];
  const bool begins = !std::exchange(record.begun, true);
  if (begins && !record.is_fork) [[unlikely]]
    lookups_.begin(record.id);
  book_.ask(record.id);
  index_->settle(pass, index, sampled);
  if (pass.rows[index].start < record.prompt_tokens) note_tail(book_, record, pass.rows[index].start);
  if (begins && record.is_fork) [[unlikely]]
    forks_.begin(record.id);
  const bool decodes = record.computed >= record.prompt_tokens && record.computed < std::ssize(record.tokens.all());
  const std::int64_t room = std::ssize(record.kv.ids) * record.kv.tokens_per_id;
  const std::int64_t most = std::min(room, book_.options.max_request_tokens) + 1;
  if (marks_ && !marks_->owns_rest(pass.rows[index].request, record.kv, record.computed)) {
    record.quiet_until = 0;
    return;
  }
  record.quiet_until = decodes ? std::min(index_->quiet_until(pass.rows[index].request), most) : 0;
}

PassCommit RequestLife::commit(PassId id, std::span<const std::int32_t> counts, std::span<const Token> sampled,
                               std::span<const std::int32_t> steps) {
  require_state(book_.passes.size() > 0 && book_.passes.at(0).id == id, "commit", "pass", id,
                "is not the oldest outstanding pass");
  check_.check_counts(counts, std::ssize(sampled));
  trees_.check_steps(book_.passes.at(0), counts, steps);
  if (arena_) arena_->begin_call();
  PassCommit commit = settle_oldest(counts, sampled, steps);
  commit.transfers = take_transfers();
  return commit;
}

PassCommit RequestLife::settle_oldest(std::span<const std::int32_t> counts, std::span<const Token> sampled,
                                      std::span<const std::int32_t> steps) {
  Pass& pass = book_.passes.at(0);
  trees_.keep(pass, counts, steps);
  if (book_.checks) book_.checks->set_pass(pass.inserts ? 0 : pass.id);
  book_.published = 0;
  book_.dropped = pass.dropped;
  book_.refused.clear();
  for (RequestBook::After& after : book_.after) {
    after.from_scratch.clear();
    after.copies.clear();
    after.steps.clear();
  }
  const bool has_trees = !pass.paths.empty();
  std::size_t first = 0;
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.runs(i)) continue;
    const RowPlan& row = pass.rows[i];
    const std::int32_t count = counts[i];
    book_.records[row.request.index()].count(row, sampled.subspan(first, static_cast<std::size_t>(count)));
    first += static_cast<std::size_t>(count);
    if (row.drafts > 0 && !book_.in_columns)
      book_.after[0].steps.push_back({.row = static_cast<std::int32_t>(i),
                                      .live_step = has_trees ? pass.kept_step(i, count - 1) : count - 1,
                                      .live_slot = row.states[0].target()});
    if (pass.is_busy(i))
      settle_row(pass, i, count);
    else if (book_.in_columns)
      for (RowState& state : book_.states.of(row.request)) state.read_bias = accepted_bias(count);
  }
  index_->publish(pass);
  if (book_.tenants) book_.tenants->keep_to_limits();
  for (std::size_t i = 0; naming_requests_ > 0 && i < pass.rows.size(); ++i)
    if (pass.runs(i)) count_breakpoints(book_, *index_, pass.rows[i]);
  for (std::size_t i = 0; tiers_ && i < pass.rows.size(); ++i)
    if (const RequestId id = pass.rows[i].request;
        pass.runs(i) && book_.record(id).computed >= book_.record(id).prompt_tokens)
      tiers_->report_prompt(id, book_.now_s);
  if (arena_) arena_->expect_kv(expected_blocks(book_, pass));
  book_.passes.pop_oldest();
  if (book_.checks) book_.checks->set_pass(0);
  lookups_.commit();
  PassCommit commit = take_commit();
  end_points();
  if (arena_) move_memory(book_, *arena_);
  if (tiers_) tiers_->end_call();
  if (arena_) {
    note_moved_kv(book_, *arena_, marks_ ? &*marks_ : nullptr);
    commit.memory = arena_->take();
  }
  return commit;
}

PassCommit RequestLife::take_commit() {
  for (std::size_t g = 0; g < book_.groups; ++g)
    group_commits_[g] = {
        .from_scratch = book_.after[g].from_scratch, .copies = book_.after[g].copies, .steps = book_.after[g].steps};
  for (std::size_t g = 0; marks_ && g < book_.groups; ++g) marks_->copied(g, group_commits_[g]);
  PassCommit result{.kv_moves = trees_.moves(),
                    .transfers = {},
                    .groups = group_commits_,
                    .published_states = book_.published,
                    .dropped_states = book_.dropped,
                    .refused_breakpoints = book_.refused,
                    .next = std::nullopt};
  if (book_.passes.size() > 0 && !book_.passes.at(0).ready) {
    Pass& next = book_.passes.at(0);  // it waited for this commit
    busy_rows_.place_late(next);
    result.next = next.view();
  }
  return result;
}

EndedRequest RequestLife::end(RequestId request, RequestEnd how, const ReuseHint& hint) {
  check_running(book_.records, request);
  require(how >= RequestEnd::finished && how <= RequestEnd::aborted, "how", static_cast<int>(how), "is not an end");
  check_hint(hint);
  if (hint != ReuseHint{}) book_.records[request.index()].hint = hint;
  if (tiers_ && tiers_->end_later(request)) {  // the places of its load must stay
    lookups_.end(request);
    return {};
  }
  if (forks_.any() && forks_.end_later(request)) return {};
  book_.end_copies.clear();
  end_now(request, how);
  end_points();
  if (tiers_) tiers_->end_call();
  if (book_.end_copies.empty()) return {};
  return {.transfers = take_transfers(), .copies = book_.end_copies};
}

/// Requests end whose forks have begun by now. Their states may have no copy any more, or be those of a fork: they
/// leave none.
void RequestLife::end_points() {
  while (const std::optional<RequestId> id = forks_.take_ended()) end_now(*id, RequestEnd::aborted);
}

void RequestLife::end_now(RequestId request, RequestEnd how) {
  if (tiers_) tiers_->stop_asking(request);
  const bool is_waiting_fork = book_.record(request).is_fork;
  if (!book_.record(request).begun && !is_waiting_fork) lookups_.count(request);
  const ReuseHint& hint = book_.record(request).hint;
  if (book_.record(request).stale || is_waiting_fork) how = RequestEnd::aborted;
  book_.ask(request);
  index_->close(request, how, hint);
  if (book_.sessions) book_.sessions->end(request, hint, book_.now_s);
  if (book_.tenants) book_.tenants->keep_to_limits();
  book_.ask_for_nobody();
  if (arena_) arena_->make_room();
  if (tiers_ && how != RequestEnd::aborted) tiers_->report_end(request, hint, book_.now_s);
  book_.passes.end_request(request);
  if (is_waiting_fork) forks_.begin(request);
  book_.records[request.index()].running = false;
  book_.records[request.index()].ending = false;
  book_.records[request.index()].quiet_until = 0;
  free_requests_.push_back(request.next());
  --book_.running;
  naming_requests_ -= !book_.asked_breakpoints_of(request).empty();
  lookups_.end(request);
}

HitPlaces RequestLife::places(RequestId request, std::size_t group) const {
  const RequestRecord& record = check_running(book_.records, request);
  require(group < book_.groups, "group", group, "is out of range");
  require_state(!record.begun, "places", "request", request.value(), "has committed a pass: state() says where it is");
  require_state(!waits(request), "places", "request", request.value(), waits_text);
  require_state(!record.is_fork, "places", "request", request.value(), fork_text);
  if (record.computed == 0) return {};
  return {.tokens = record.computed, .kv = index_->kv_of(request), .state = book_.hit_of(request, group)};
}

/// A fork that has not begun has that of its point.
KvRow RequestLife::kv(RequestId request) const {
  const RequestRecord& record = check_running(book_.records, request);
  return index_->kv_of(record.is_fork ? book_.point_of(request) : request);
}

RowState RequestLife::state(RequestId request, std::size_t group) const {
  const RequestRecord& record = check_running(book_.records, request);
  require(group < book_.groups, "group", group, "is out of range");
  return book_.states.of(record.is_fork ? book_.point_of(request) : request)[group];
}

void RequestLife::reset() {
  if (book_.running > 0 || (tiers_ && tiers_->transfers_under_way() > 0)) {
    epochs_->forget_all();
    return;
  }
  while (book_.passes.size() > 0) busy_rows_.drop_newest();
  if (prefixes_) prefixes_->end_all();
  index_->forget_all();
  if (book_.tenants) book_.tenants->reset();
  if (book_.sessions) book_.sessions->clear_contents();
  if (book_.checks) book_.checks->clear();
  if (tiers_) tiers_->index().reset();
  book_.news.cleared();
  clock_.restart();
}

std::size_t RequestLife::take_events(std::span<CacheEvent> out) {
  require_state(book_.news.has_events(), "take_events", "the option events is off");
  return book_.news.take(out);
}

void RequestLife::check_invariants() const {
  constexpr const char* structure = "RequestCache";
  std::int32_t running = 0;
  std::int32_t with_live_slot = 0;
  for (std::size_t i = 0; i < book_.records.size(); ++i) {
    const RequestRecord& record = book_.records[i];
    running += record.running && !record.holds_prefix;
    require_invariant(record.running || record.quiet_until == 0, structure, "a request that ended is quiet");
    if (!record.running) continue;
    require_invariant(record.computed <= std::ssize(record.tokens.all()), structure, "more is computed than known");
    require_invariant(record.prompt_tokens <= std::ssize(record.tokens.all()), structure, "a prompt lost tokens");
    require_invariant(record.quiet_until == 0 || record.computed < std::ssize(record.tokens.all()), structure,
                      "a quiet request has no token to feed");
    const RequestId id = record.id;
    require_invariant(id.valid() && id.index() == i, structure, "a request has the number of another row");
    const auto same = [](const auto& a, const auto& b) { return a.data() == b.data() && a.size() == b.size(); };
    if (!record.has_kv()) continue;
    with_live_slot += !record.holds_prefix;
    require_invariant(same(record.kv.ids, index_->kv_of(id).ids), structure, "the KV of a request is out of date");
    for (std::size_t g = 0; g < book_.groups; ++g)
      require_invariant(same(book_.states.of(id)[g].slots, index_->slots_of(id, g)), structure,
                        "the slots of a state are out of date");
  }
  require_invariant(running == book_.running, structure, "the number of running requests is wrong");
  require_invariant(std::ssize(free_requests_) + running == book_.options.max_requests, structure,
                    "a request number is lost");
  for (std::size_t p = 0; p < book_.passes.size(); ++p)
    for (std::size_t i = 0; i < book_.passes.at(p).rows.size(); ++i)
      require_invariant(!book_.passes.at(p).runs(i) || book_.record(book_.passes.at(p).rows[i].request).running,
                        structure, "a row outlives its request");
  index_->check();
  if (book_.tenants) {
    const CacheUsage now = usage();
    const bool live_too =
        book_.options.index == CacheIndex::tree && !book_.in_columns && !book_.slots.separate_checkpoints;
    book_.tenants->check(now.kv_tokens / book_.options.block_size_tokens, now.states + (live_too ? with_live_slot : 0));
  }
  lookups_.check();
  forks_.check_invariants();
  if (prefixes_) prefixes_->check();
  if (book_.sessions) book_.sessions->check();
  if (tiers_) tiers_->check_invariants();
  if (arena_) arena_->check();
}

}  // namespace stateport::detail
