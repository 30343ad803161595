// SPDX-License-Identifier: Apache-2.0
#include "caches/request_replayer.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "caches/served_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace stateport::replay {
namespace {

double elapsed_ns(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

std::int64_t computed_tokens(const Request& request) {
  return request.input_tokens + std::max<std::int64_t>(request.output_tokens, 1) - 1;
}

/// Tokens that passes of a request may reach beyond its end: its last pass, and one planned ahead of its count.
std::int64_t slack(std::int32_t drafts) {
  return 2 * (1 + std::int64_t{drafts});
}

std::int64_t request_tokens_max(const Workload& workload, std::int32_t drafts) {
  std::int64_t tokens = 1;
  for (std::size_t i = 0; i < workload.size(); ++i) tokens = std::max(tokens, computed_tokens(workload.request(i)));
  return tokens + slack(drafts);
}

/// Room for all KV of the workload and of the requests in flight, at most as many tokens as a KV index can name.
std::int64_t kv_tokens(const Workload& workload, std::int64_t longest, std::int32_t concurrency) {
  const std::int64_t block = workload.block_size_tokens();
  std::int64_t tokens = concurrency * (longest + block);
  for (std::size_t i = 0; i < workload.size(); ++i) tokens += computed_tokens(workload.request(i));
  return std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max() - 2 * block);
}

RequestReplayOptions validated(const RequestReplayOptions& options, std::int64_t block_size_tokens) {
  const RequestCacheOptions& cache = options.cache;
  require(options.accept >= 0 && options.accept <= 1, "accept", fmt::format("{}", options.accept), "0 to 1");
  require(options.history_tokens >= 1, "history_tokens", options.history_tokens, "at least 1");
  require(options.running_max >= 0, "running_max", options.running_max, "must not be negative");
  require(cache.block_size_tokens == block_size_tokens, "block_size_tokens", cache.block_size_tokens,
          "must be that of the workload");
  require(block_size_tokens >= 2 * (1 + std::int64_t{cache.drafts}), "block_size_tokens", block_size_tokens,
          "at least twice the tokens of a decode step");
  require(block_size_tokens <= options.step_tokens_max, "block_size_tokens", block_size_tokens,
          fmt::format("at most the {} prefill tokens of a step", options.step_tokens_max));
  require(in_columns(cache) || cache.drafts == 0, "drafts", cache.drafts, "need a layout in columns");
  return options;
}

}  // namespace

RequestCacheOptions align_cache_options(const Workload& workload, std::int32_t blocks, std::int32_t drafts,
                                        bool asynchronous, CacheIndex index, const ScheduleOptions& schedule) {
  require(schedule.concurrency >= 1, "concurrency", schedule.concurrency, "at least 1");
  require(drafts >= 0, "drafts", drafts, "must not be negative");
  require(blocks >= schedule.concurrency * blocks_held_max(drafts), "slots", blocks,
          "too few for the requests that run at the same time: 4 + drafts for each request");
  require(blocks < std::numeric_limits<std::int32_t>::max() - 2, "slots", blocks, "at most 2^31 - 4");
  const std::int64_t longest = request_tokens_max(workload, drafts);
  const auto block = static_cast<std::int32_t>(workload.block_size_tokens());
  return {.index = index,
          .layout = ColumnLayout{.groups = {{.block_size_tokens = block, .blocks = blocks}}},
          .max_requests = schedule.concurrency,
          .max_request_tokens = longest,
          .drafts = drafts,
          .block_size_tokens = block,
          .kv_tokens = kv_tokens(workload, longest, schedule.concurrency),
          .unchecked_layout = true,
          .overlap = asynchronous,
          .events = true,
          .share_running = schedule.share_running};
}

std::int64_t served_blocks_min(const Workload& workload, std::int32_t concurrency) {
  const std::int64_t block = workload.block_size_tokens();
  return concurrency * ((request_tokens_max(workload, 0) + block - 1) / block);
}

RequestCacheOptions pool_cache_options(const Workload& workload, CacheIndex index, std::int64_t blocks,
                                       std::int64_t slots, bool asynchronous, const ScheduleOptions& schedule) {
  const std::int64_t block = workload.block_size_tokens();
  require(schedule.concurrency >= 1, "concurrency", schedule.concurrency, "at least 1");
  require(blocks >= served_blocks_min(workload, schedule.concurrency), "blocks", blocks,
          "too few for the requests that run at the same time");
  require(blocks <= (std::numeric_limits<std::int32_t>::max() - 2 * block) / block, "blocks", blocks,
          "more than a KV index can name");
  require(slots >= 0 && slots < std::numeric_limits<std::int32_t>::max() - schedule.concurrency, "slots", slots,
          fmt::format("0 to 2^31 - 2 - {}", schedule.concurrency));
  return {.index = index,
          .layout = SlotLayout{.checkpoints = static_cast<std::int32_t>(slots)},
          .max_requests = schedule.concurrency,
          .max_request_tokens = request_tokens_max(workload, 0),
          .block_size_tokens = static_cast<std::int32_t>(block),
          .kv_tokens = blocks * block,
          .unchecked_layout = true,
          .overlap = asynchronous,
          .events = true,
          .share_running = schedule.share_running};
}

std::int64_t align_blocks_max(const Workload& workload, std::int32_t drafts, std::int32_t concurrency) {
  std::int64_t blocks = concurrency * blocks_held_max(drafts);
  for (std::size_t i = 0; i < workload.size(); ++i)
    blocks += computed_tokens(workload.request(i)) / workload.block_size_tokens();
  return blocks;
}

RequestReplayer::RequestReplayer(const Workload& workload, const RequestReplayOptions& options, PassMover& mover)
    : workload_(workload),
      options_(validated(options, workload.block_size_tokens())),
      mover_(mover),
      continuations_(find_continuations(workload)),
      cache_(make_request_cache(options.cache)),
      random_(options.seed),
      accept_below_(static_cast<std::uint64_t>(std::ldexp(options.accept, 32))),
      serving_(static_cast<std::size_t>(options.cache.max_requests)),
      writer_(options.history_tokens),
      events_(1024) {
  set_quotas(*cache_, options_.tenants, 1);
  admitted_.reserve(serving_.size());
  std::set<std::int64_t> later;
  ends_session_.resize(workload.size());
  for (std::size_t i = workload.size(); i-- > 0;) ends_session_[i] = later.insert(workload.request(i).session).second;
}

void RequestReplayer::run(const Continue& keep_going) {
  const Clock::time_point begin = Clock::now();
  while (advance(keep_going)) {
  }
  counts_.wall_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Plans and runs a pass. With overlap the pass before it is committed then, else this one.
bool RequestReplayer::advance(const Continue& keep_going) {
  admit();
  Pass next = schedule();
  if (next.rows.empty() && before_.rows.empty()) return false;
  Clock::duration planning{};
  if (!next.rows.empty()) planning += plan(next);
  bool going = true;
  const bool overlap = cache_->options().overlap;
  if (!before_.rows.empty() || !overlap) {
    const Pass& done = before_.rows.empty() ? next : before_;
    name_sampled(done);
    const Clock::time_point begin = Clock::now();
    const PassCommit commit = cache_->commit(done.id, sampled_counts_, sampled_);
    planning += Clock::now() - begin;
    passes_.refused += commit.dropped_states;
    for (const GroupCommit& group : commit.groups) {
      count_copies(group.from_scratch);
      count_copies(group.copies);
    }
    mover_.after(commit);
    going = settle(done, next, keep_going);
    if (commit.next && going) execute(*commit.next, next);
  }
  if (!next.rows.empty()) passes_.planning_ns.push_back(elapsed_ns(planning));
  take_events();
  before_ = overlap ? std::move(next) : Pass{};
  return going;
}

void RequestReplayer::admit() {
  for (std::size_t i = 0; i < serving_.size(); ++i) {
    if (serving_[i].request.valid() || next_ == workload_.size()) continue;
    if (!start(serving_[i])) return;
    admitted_.push_back(i);
  }
}

/// False: there is no room for it yet.
bool RequestReplayer::start(Serving& serving) {
  const Request& wanted = workload_.request(next_);
  const std::int64_t end = computed_tokens(wanted);
  serving = {.index = next_, .prompt = wanted.input_tokens, .end = end};
  serving.names = Sequence(workload_.block_size_tokens(), end + slack(cache_->options().drafts) + 1,
                           workload_.blocks(continuations_[next_]), next_);
  prompt_.clear();
  for (std::int64_t at = 0; at < serving.prompt; ++at) prompt_.push_back(serving.names.token(at));
  const bool is_named = options_.breakpoints && wanted.left_at_tokens > 0;
  ReuseHint hint = wanted.hint;
  if (cache_->sessions() != nullptr && wanted.session >= 0)
    hint.session = static_cast<std::uint64_t>(wanted.session) + 1;
  const auto started = cache_->start({.tokens = prompt_,
                                      .name_space = name_space_of(wanted.tenant),
                                      .hint = hint,
                                      .now_s = wanted.arrival_s(),
                                      .breakpoints = {&wanted.left_at_tokens, is_named ? 1u : 0u}});
  if (!started) return false;
  ++next_;
  serving.request = started->request;
  serving.computed = serving.reused = started->reused_tokens;
  serving.lost = started->lost;
  serving.waited = started->waits_for.has_value();
  counts_.input_tokens += serving.prompt;
  return true;
}

/// The first pass of a request is planned: it is not looked up again.
void RequestReplayer::count_hit(const Serving& serving) {
  counts_.requests_hit += serving.reused > 0;
  counts_.hit_tokens += serving.reused;
  counts_.recorded.add(workload_.request(serving.index), serving.reused);
  counts_.count_tenant(workload_.request(serving.index), serving.reused);
  if (serving.lost) ++counts_.lost_hits[static_cast<std::size_t>(*serving.lost)];
}

/// The first pass of a request is about to be planned: reads how much it reuses after its wait, if it waited, and asks
/// whether there is more, if the engine does so.
void RequestReplayer::look_up_again(Serving& serving) {
  const auto more = options_.refresh ? cache_->refresh(serving.request) : std::nullopt;
  if (!more && !serving.waited) return;
  serving.computed = serving.reused = cache_->computed(serving.request);
  if (more) {
    serving.lost = more->lost;
  } else {  // no answer of the cache names the reason after a wait
    const std::int64_t usable = floor_to(serving.prompt - 1, workload_.block_size_tokens());
    serving.lost = serving.reused < usable ? std::optional(LostHit::never_stored) : std::nullopt;
  }
  serving.waited = false;
}

/// Number of tokens that are computed, at least, once the pending pass is committed.
std::int64_t RequestReplayer::computed_at_least(std::size_t index) const {
  std::int64_t computed = serving_[index].computed;
  for (const Row& row : before_.rows)
    if (row.serving == index && row.runs) computed += row.tokens - row.drafts;
  return computed;
}

/// Decode steps first: they are short, and their requests wait for nothing.
RequestReplayer::Pass RequestReplayer::schedule() {
  Pass pass;
  for (std::size_t i = 0; i < serving_.size(); ++i) {
    const std::int64_t left = serving_[i].end - computed_at_least(i);
    if (!serving_[i].request.valid() || computed_at_least(i) < serving_[i].prompt || left <= 0) continue;
    const auto drafts = static_cast<std::int32_t>(std::min<std::int64_t>(cache_->options().drafts, left - 1));
    pass.rows.push_back({.serving = i, .tokens = 1 + drafts, .drafts = drafts});
  }
  add_prefills(pass);
  return pass;
}

/// The request that was admitted first is prefilled first. A request that waits for another one is passed over.
void RequestReplayer::add_prefills(Pass& pass) {
  std::int64_t budget = options_.step_tokens_max;
  const std::int64_t running_max = options_.running_max > 0 ? options_.running_max : std::ssize(serving_);
  std::int64_t running = std::ranges::count_if(
      serving_, [](const Serving& serving) { return serving.request.valid() && serving.scheduled; });
  for (const std::size_t i : admitted_) {
    Serving& serving = serving_[i];
    if (budget == 0) return;
    if (computed_at_least(i) >= serving.prompt) continue;
    if (!serving.scheduled) {
      const bool waits = cache_->chunk(serving.request, budget) == PromptChunk{};
      if (waits || running == running_max) continue;
      look_up_again(serving);
    }
    const std::int64_t tokens = cache_->chunk(serving.request, budget).tokens;
    if (tokens == 0) continue;
    pass.rows.push_back({.serving = i, .tokens = static_cast<std::int32_t>(tokens)});
    budget -= tokens;
    running += !serving.scheduled;
  }
}

/// Returns the time that the plan took.
RequestReplayer::Clock::duration RequestReplayer::plan(Pass& pass) {
  batch_.clear();
  for (const Row& row : pass.rows)
    batch_.push_back({.request = serving_[row.serving].request, .tokens = row.tokens, .drafts = row.drafts});
  const Clock::time_point begin = Clock::now();
  const PassPlan plan = cache_->plan(batch_);
  const Clock::duration time = Clock::now() - begin;
  ++passes_.steps;
  pass.id = plan.pass;
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    pass.rows[i].runs = plan.rows[i].room;
    Serving& serving = serving_[pass.rows[i].serving];
    if (!plan.rows[i].room || serving.scheduled) continue;
    serving.scheduled = true;
    count_hit(serving);
  }
  require_invariant(!before_.rows.empty() || std::cmp_less(plan.rows_without_room, pass.rows.size()), "RequestReplayer",
                    "no request finds room");
  if (plan.ready) execute(plan, pass);
  return time;
}

/// Enqueues the pass: the copies before it, and the forward.
void RequestReplayer::execute(const PassPlan& plan, Pass& pass) {
  for (const GroupPlan& group : plan.groups) count_copies(group.copies);
  mover_.before(plan);
  writer_.clear();
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    Row& row = pass.rows[i];
    if (!row.runs) continue;
    Serving& serving = serving_[row.serving];
    row.start = plan.rows[i].start;
    sample(row, serving);
    const RowState& state = plan.rows[i].states.front();
    if (!std::exchange(serving.begun, true) && serving.reused > 0)
      check(state, serving, serving.reused, "restored", true);
    writer_.add(plan.rows[i], state, row.sampled, serving.names);
  }
  mover_.forward(writer_.forward());
}

void RequestReplayer::sample(Row& row, const Serving& serving) {
  if (row.start < serving.prompt) {
    row.sampled = row.start + row.tokens >= serving.prompt ? 1 : 0;
    return;
  }
  std::int32_t kept = 0;
  while (kept < row.drafts && (random_() >> 32) < accept_below_) ++kept;
  row.sampled = 1 + kept;
  passes_.drafts_proposed += row.drafts;
  passes_.drafts_accepted += kept;
}

/// Names the tokens that the rows of the pass sampled: kept drafts and one token more.
void RequestReplayer::name_sampled(const Pass& pass) {
  sampled_counts_.clear();
  sampled_.clear();
  for (const Row& row : pass.rows) {
    sampled_counts_.push_back(row.runs ? row.sampled : 0);
    const std::int64_t first = row.start + row.tokens - row.drafts;
    for (std::int64_t at = first; at < first + sampled_counts_.back(); ++at)
      sampled_.push_back(serving_[row.serving].names.token(at));
  }
}

/// Counts the tokens that the rows computed and ends the requests that are done; their rows in the pass planned ahead
/// are void. False: no more requests are wanted.
bool RequestReplayer::settle(const Pass& pass, Pass& next, const Continue& keep_going) {
  count_prefills(pass);
  for (const Row& row : pass.rows) {
    if (!row.runs) continue;
    Serving& serving = serving_[row.serving];
    serving.computed += row.tokens - row.drafts + std::max(row.sampled, 1) - 1;
    if (in_columns(options_.cache)) check_published(serving, row.start);
    if (serving.computed < serving.end) continue;
    finish(serving);
    if (&pass != &next)
      for (Row& planned : next.rows)
        if (planned.serving == row.serving) planned.runs = false;
    if (!keep_going(counts_.requests)) return false;
  }
  return true;
}

void RequestReplayer::count_prefills(const Pass& pass) {
  const auto prefills = [&](const Row& row) { return row.runs && row.start < serving_[row.serving].prompt; };
  for (const Row& row : pass.rows)
    if (prefills(row)) passes_.computed_prompt_tokens += row.tokens;
  for (const Row& row : pass.rows)
    if (prefills(row) && row.sampled > 0)
      passes_.first_token_after_tokens.push_back(static_cast<double>(passes_.computed_prompt_tokens));
}

/// Checks the states at the boundaries after `from` tokens, each in a column of its own. A boundary that a chunk passed
/// has none.
void RequestReplayer::check_published(const Serving& serving, std::int64_t from) {
  const std::int64_t block = workload_.block_size_tokens();
  const std::span<const std::int32_t> columns = cache_->state(serving.request).slots;
  for (std::int64_t boundary = floor_to(from, block) + block; boundary <= serving.computed; boundary += block) {
    const std::span<const std::int32_t> column = columns.subspan(static_cast<std::size_t>(boundary / block) - 1, 1);
    if (column.front() != null_block) check({.slots = column, .read_column = 0}, serving, boundary, "published", false);
  }
}

/// After a request. The draws do not depend on the order in which requests end.
void RequestReplayer::close_session(std::size_t index) {
  const std::int64_t session = workload_.request(index).session;
  if (cache_->sessions() == nullptr || session < 0) return;
  std::mt19937_64 draw(options_.seed + index);
  constexpr double all = 100;
  const double drawn = std::ldexp(static_cast<double>(draw() >> 11), -53) * all;
  if (ends_session_[index] || drawn < options_.mistaken_closes)
    static_cast<void>(cache_->sessions()->close(static_cast<std::uint64_t>(session) + 1));
}

/// A pass planned ahead may have changed the state already.
void RequestReplayer::finish(Serving& serving) {
  if (!cache_->options().overlap) check(cache_->state(serving.request), serving, serving.computed, "final", false);
  mover_.after_end(cache_->finish(serving.request, workload_.request(serving.index).hint).copies);
  close_session(serving.index);
  std::erase(admitted_, static_cast<std::size_t>(&serving - serving_.data()));
  serving.request = {};
  ++counts_.requests;
}

void RequestReplayer::check(const RowState& state, const Serving& serving, std::int64_t tokens, const char* what,
                            bool restored) {
  const std::uint64_t wrong_words = mover_.check(state, writer_.window_of(serving.names, tokens), restored);
  if (wrong_words == 0 || !counts_.first_mismatch.empty()) return;
  counts_.first_mismatch = fmt::format(
      "request {}: the {} content of slot {} is not the state after {} tokens of it ({} wrong 16-byte words)",
      serving.index, what, state.recurrent_source().value(), tokens, wrong_words);
}

void RequestReplayer::count_copies(CopyPlan copies) {
  passes_.copies += std::ssize(copies);
  const std::int32_t first = in_columns(options_.cache) ? null_block + 1 : 0;
  for (const SlotCopy& copy : copies)
    passes_.skipped_parts += copy.src_slot < first || copy.recurrent_src_slot < first || copy.dst_slot < first;
}

void RequestReplayer::take_events() {
  if (!cache_->options().events) return;
  for (std::size_t taken = events_.size(); taken == events_.size();) {
    taken = cache_->take_events(events_);
    for (const CacheEvent& event : std::span(events_).first(taken)) {
      const bool state = event.content == CacheEvent::Content::state;
      const bool removed = event.kind == CacheEvent::Kind::removed;
      (state ? resident_states_ : resident_blocks_) += removed ? -1 : 1;
      (state ? removed_states_ : removed_blocks_) += removed;
    }
  }
}

CacheCounts RequestReplayer::cache_counts() const {
  return {.state_evictions = cache_->options().events ? removed_states_ : cache_->usage().evicted_states,
          .block_evictions = removed_blocks_,
          .dropped_checkpoints = passes_.refused,
          .resident_blocks = resident_blocks_,
          .resident_states = resident_states_,
          .awaited_tokens = cache_->stats().awaited_tokens,
          .tenant_bytes = tenant_bytes(*cache_)};
}

}  // namespace stateport::replay
