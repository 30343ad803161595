// SPDX-License-Identifier: Apache-2.0
#include "scheduler.hpp"

#include "random_numbers.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <ostream>
#include <stdexcept>
#include <utility>

namespace stateport::engine {
namespace {

constexpr std::int32_t steps_max = 20000;
/// Threads of files get on as the machine lets them, however many steps an engine waits meanwhile.
constexpr std::chrono::seconds files_max{60};

std::size_t count_of_ids(const Schedule& schedule) {
  std::int32_t last = -1;
  for (const PlannedRequest& request : schedule.requests) last = std::max(last, request.id);
  return static_cast<std::size_t>(last + 1);
}

/// A number that depends on the schedule, the step and the request alone.
std::uint64_t mixed(std::uint64_t seed, std::int32_t step, std::int32_t id) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u;
  x += static_cast<std::uint32_t>(step) * 64u + static_cast<std::uint32_t>(id);
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

}  // namespace

Scheduler::Scheduler(const Schedule& schedule, const Model* draft, MakeCache make_cache, std::ostream* log)
    : schedule_(schedule),
      draft_(draft),
      make_cache_(std::move(make_cache)),
      cache_(make_cache_(0)),
      log_(log),
      answers_(count_of_ids(schedule)) {
  for (const PlannedRequest& request : schedule.requests) {
    Sequence sequence{.id = request.id,
                      .tokens = request.prompt,
                      .kv = {},
                      .breakpoints = request.breakpoints,
                      .fork_of = request.fork_of,
                      .fork_at = request.fork_at};
    sequence.end_tokens = sequence.known() + request.new_tokens;
    waiting_.push_back(std::move(sequence));
  }
  for (std::int32_t slot = schedule.cache.max_running; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

template <class... Parts>
void Scheduler::note(const Parts&... parts) {
  if (log_ == nullptr) return;
  *log_ << "  step " << step_ << ": ";
  (*log_ << ... << parts) << '\n';
}

std::vector<Answer> Scheduler::run() {
  for (; !waiting_.empty() || !running_.empty() || has_under_way_; ++step_) {
    apply_events();
    admit();
    while (!try_step()) {
    }
    under_way_ = std::move(rows_);
    rows_.clear();
    has_under_way_ = true;
    if (!schedule_.cache.overlap || under_way_.empty()) settle();
    if (schedule_.cache.fault == Fault::none) cache_->check_invariants();
  }
  return std::move(answers_);
}

bool Scheduler::try_step() {
  plan_step();
  count_step();
  const bool run_ahead = planned_ && has_under_way_ && mixed(schedule_.seed, step_, -1) % 2 == 0;
  if (has_under_way_ && !run_ahead) settle();
  if (!forward_all()) return false;
  if (run_ahead) settle();
  return true;
}

void Scheduler::count_step() {
  const auto now = std::chrono::steady_clock::now();
  if (!rows_.empty() || !schedule_.cache.tiers.hasty) {
    ++counted_steps_;
    last_counted_ = now;
  }
  if (counted_steps_ > steps_max || now - last_counted_ > files_max)
    throw std::logic_error("Scheduler: nothing gets on");
}

Sequence* Scheduler::running(std::int32_t id) {
  for (const auto& sequence : running_)
    if (sequence->id == id) return sequence.get();
  return nullptr;
}

void Scheduler::apply_events() {
  for (const PlannedEvent& event : schedule_.events) {
    if (event.step != step_) continue;
    if (event.kind == PlannedEvent::Kind::reset) {
      note("reset");
      remove_all();
      cache_->reset();
    } else if (event.kind == PlannedEvent::Kind::weights || event.kind == PlannedEvent::Kind::forget) {
      change_weights(event);
    } else if (event.kind == PlannedEvent::Kind::restart || event.kind == PlannedEvent::Kind::crash) {
      note(event.kind == PlannedEvent::Kind::restart ? "restart" : "crash");
      restart(event.kind == PlannedEvent::Kind::restart);
    } else if (Sequence* sequence = running(event.request)) {
      note(event.kind == PlannedEvent::Kind::abort ? "abort request " : "preempt request ", event.request);
      remove(*sequence, event.kind == PlannedEvent::Kind::preempt);
    }
  }
}

/// Requests that run go on with the weights with which they began, or start again.
void Scheduler::change_weights(const PlannedEvent& event) {
  const bool all = event.kind == PlannedEvent::Kind::weights;
  const auto tenant = static_cast<std::size_t>(event.request % 2);
  note(all ? "the weights change" : "the weights of a tenant change");
  ++last_weights_;
  if (all)
    weights_.fill(last_weights_);
  else
    weights_[tenant] = last_weights_;
  epoch_ += all;
  cache_->forget(all ? std::nullopt : std::optional(static_cast<std::int32_t>(tenant)));
  for (std::size_t i = running_.size(); i-- > 0;) {
    Sequence& sequence = *running_[i];
    const bool is_old = sequence.began.back().weights != weights_[static_cast<std::size_t>(sequence.id % 2)];
    if (cache_->is_stale(sequence).value_or(is_old) != is_old)
      throw std::logic_error("Scheduler: a request is stale, or is not");
    past_counts_.stale += is_old;
    if (is_old && event.request % 3 != 0) remove(sequence, true);
  }
}

const Model& Scheduler::target(const Sequence& sequence) const {
  return target_model(schedule_.seed + sequence.began.back().weights, schedule_.cache.type);
}

void Scheduler::remove_all() {
  while (!running_.empty()) remove(*running_.back(), true);
  has_under_way_ = false;
  under_way_.clear();
}

/// Nothing is left of the engine but its files.
void Scheduler::restart(bool keep) {
  remove_all();
  cache_->shut_down(keep);
  past_counts_ = counts();
  ++past_counts_.tiers.restarts;
  cache_.reset();
  // What was forgotten in this epoch may still lie in files.
  const bool forgot = weights_[0] != weights_[1];
  epoch_ += forgot;
  cache_ = make_cache_(epoch_);
}

CacheCounts Scheduler::counts() const {
  CacheCounts counts = past_counts_;
  return counts += cache_->counts();
}

Sequence* Scheduler::point_of(const Sequence& next) {
  Sequence* const point = next.fork_of < 0 ? nullptr : running(next.fork_of);
  if (point == nullptr || point->computed > next.fork_at || point->prefill > next.fork_at) return nullptr;
  const auto known = std::min(point->read_back, next.fork_at);
  return std::equal(next.tokens.begin(), next.tokens.begin() + known, point->tokens.begin()) ? point : nullptr;
}

bool Scheduler::is_forked_now(const Sequence& sequence) const {
  if (free_slots_.empty()) return false;
  const std::int64_t computed = sequence.computed + adds_at_least(sequence);
  return std::ranges::any_of(waiting_, [&](const Sequence& waiting) {
    return waiting.fork_of == sequence.id && waiting.fork_at == computed && sequence.prefill <= computed;
  });
}

/// A fork that finds no room starts as any request.
bool Scheduler::start(Sequence& next) {
  next.slot = free_slots_.back();
  next.prefill = next.read_back = next.known();
  next.kv.clear();
  Sequence* const point = point_of(next);
  next.fork_of = -1;
  if (point != nullptr && cache_->fork(next, *point)) {
    note("request ", next.id, " is a fork of request ", point->id, " after ", next.computed, " tokens");
    next.began.push_back({.known = next.known(), .weights = point->began.back().weights});
    return true;
  }
  if (!cache_->start(next)) {
    note("no room for request ", next.id);
    return false;
  }
  note("start request ", next.id, " with ", next.computed, " of ", next.known(), " tokens cached",
       next.loading ? ", more to be loaded" : "");
  next.began.push_back({.known = next.known(), .weights = weights_[static_cast<std::size_t>(next.id % 2)]});
  return true;
}

/// Forks of sequences that wait for them come first.
void Scheduler::admit() {
  const auto has_arrived = [&](const Sequence& sequence) {
    return std::ranges::find(schedule_.requests, sequence.id, &PlannedRequest::id)->arrival_step <= step_;
  };
  const auto is_due = [&](const Sequence& sequence) {
    const Sequence* const point = point_of(sequence);
    return point != nullptr && point->computed == sequence.fork_at && under_way(*point) == nullptr;
  };
  const auto forks_now = [&](const Sequence& sequence) { return has_arrived(sequence) && is_due(sequence); };
  const auto begins = [&](const Sequence& sequence) { return has_arrived(sequence) && point_of(sequence) == nullptr; };
  while (!free_slots_.empty()) {
    auto next = std::ranges::find_if(waiting_, forks_now);
    if (next == waiting_.end()) next = std::ranges::find_if(waiting_, begins);
    if (next == waiting_.end()) return;
    if (!start(*next)) {
      if (running_.empty() && !cache_->wait())
        throw std::logic_error("Scheduler: an empty engine has no room for a request");
      return;
    }
    free_slots_.pop_back();
    running_.push_back(std::make_unique<Sequence>(std::move(*next)));
    waiting_.erase(next);
  }
}

Row* Scheduler::under_way(const Sequence& sequence) {
  for (Row& row : under_way_)
    if (row.sequence == &sequence) return &row;
  return nullptr;
}

std::int64_t Scheduler::adds_at_least(const Sequence& sequence) const {
  for (const Row& row : under_way_)
    if (row.sequence == &sequence) return row.scheduled - row.drafts;
  return 0;
}

Row Scheduler::next_row(Sequence& sequence, std::int64_t budget) const {
  Row row{.sequence = &sequence, .index = static_cast<std::int32_t>(rows_.size())};
  if (!cache_->ready(sequence) || is_forked_now(sequence)) return row;
  const std::int64_t computed = sequence.computed + adds_at_least(sequence);
  if (computed < sequence.prefill) {
    row.scheduled = cache_->chunk(sequence, std::min(sequence.prefill - computed, budget));
    return row;
  }
  // The next token to be read back completes it, whichever token that is.
  if (std::max(computed + 1, sequence.read_back) >= sequence.end_tokens) return row;
  // Not every step has all drafts.
  const std::uint64_t draw = mixed(schedule_.seed, step_, sequence.id);
  const std::int64_t wanted = draw % 4 == 0 ? static_cast<std::int64_t>(draw / 4 % 4) : schedule_.cache.drafts;
  if (draft_ != nullptr)
    row.drafts = cache_->drafts(std::min({wanted, std::int64_t{schedule_.cache.drafts}, budget - 1}));
  row.scheduled = 1 + row.drafts;
  row.parents = draw_parents(row);
  return row;
}

/// Those of a batch are trees, or none is.
std::vector<std::int32_t> Scheduler::draw_parents(const Row& row) const {
  std::vector<std::int32_t> parents;
  if (!schedule_.cache.trees || !cache_->allows_trees() || mixed(schedule_.seed, step_, -2) % 4 == 0) return parents;
  test::Random random(mixed(schedule_.seed, step_, row.sequence->id));
  for (std::int32_t draft = 0; draft < row.drafts; ++draft) parents.push_back(random.between32(0, draft));
  return parents;
}

bool Scheduler::try_plan() {
  rows_.clear();
  std::int64_t budget = schedule_.budget_tokens;
  for (const auto& sequence : running_) {
    if (budget <= 0) break;
    const Row row = next_row(*sequence, budget);
    if (row.scheduled == 0) continue;
    budget -= row.scheduled;
    rows_.push_back(row);
  }
  planned_ = cache_->plan(rows_);
  return std::ranges::all_of(rows_, &Row::room);
}

/// The last sequence gives way until every row has room.
void Scheduler::plan_step() {
  while (!try_plan()) {
    if (running_.size() == 1 && rows_.size() == 1) {
      if (!cache_->wait()) throw std::logic_error("Scheduler: no room for a request alone");
      continue;
    }
    note("request ", running_.back()->id, " gives way");
    remove(*running_.back(), true);
  }
}

bool Scheduler::forward_all() {
  if (!cache_->before_forward()) {
    for (std::size_t i = running_.size(); i-- > 0;) {
      if (!cache_->is_wrong(*running_[i])) continue;
      note("the state of request ", running_[i]->id, " is wrong");
      remove(*running_[i], true);
    }
    return false;
  }
  for (Row& row : rows_)
    if (row.sequence != nullptr) forward(row);
  return true;
}

/// Reads back the tokens that the batch under way sampled.
void Scheduler::settle() {
  cache_->after_forward(under_way_, rows_);
  has_under_way_ = false;
  const std::vector<Row> settled = std::move(under_way_);
  under_way_.clear();
  for (const Row& row : settled) {
    if (row.sequence == nullptr) continue;
    row.sequence->computed = row.end();
    row.sequence->read_back = row.sampled_at + row.sampled;
  }
  for (const Row& row : settled)
    if (row.sequence != nullptr && row.sequence->read_back == row.sequence->end_tokens) {
      note("request ", row.sequence->id, " is complete");
      remove(*row.sequence, false);
    }
}

std::vector<KvIndex> Scheduler::kv_of(const Row& row, std::int64_t step) {
  const std::vector<KvIndex>& kv = row.sequence->kv;
  std::vector<KvIndex> path;
  for (; step >= 0; step = row.parent(step)) path.push_back(kv[static_cast<std::size_t>(row.start + step)]);
  path.insert(path.end(), std::make_reverse_iterator(kv.begin() + row.start), kv.rend());
  std::ranges::reverse(path);
  return path;
}

/// The draft model continues from the target's own state and KV. The target overwrites the draft's KV when it checks
/// the drafts. Those that follow one step are its most likely tokens, the most likely one last.
void Scheduler::propose(const Row& row, std::vector<Token>& fed) {
  const auto steps = static_cast<std::size_t>(row.scheduled);
  std::vector<ModelState> states(steps);
  std::vector<Hidden> hidden(steps);
  std::vector<std::size_t> followers(steps);
  for (std::int64_t draft = 1; draft < row.scheduled; ++draft) ++followers[static_cast<std::size_t>(row.parent(draft))];
  states[0] = Model::empty_state();
  cache_->read_state(row, states[0]);
  for (std::size_t draft = 0; draft < steps; ++draft) {
    if (draft > 0) {
      const auto parent = static_cast<std::size_t>(row.parent(static_cast<std::int64_t>(draft)));
      fed.push_back(draft_->sample(hidden[parent], --followers[parent]));
      states[draft] = states[parent];
    }
    if (followers[draft] > 0)
      hidden[draft] =
          draft_->feed(fed[draft], states[draft], cache_->kv(), kv_of(row, static_cast<std::int64_t>(draft)));
  }
}

void Scheduler::forward(Row& row) {
  Sequence& sequence = *row.sequence;
  const auto first = sequence.tokens.begin() + row.start;
  std::vector<Token> fed(first, first + row.scheduled - row.drafts);
  if (row.drafts > 0) propose(row, fed);

  std::vector<ModelState> states;
  std::vector<Hidden> hidden;
  for (std::int64_t step = 0; step < row.scheduled; ++step) {
    ModelState state = step > 0 ? states[static_cast<std::size_t>(row.parent(step))] : Model::empty_state();
    if (step == 0 && row.start > 0) cache_->read_state(row, state);
    hidden.push_back(target(sequence).feed(fed[static_cast<std::size_t>(step)], state, cache_->kv(), kv_of(row, step)));
    cache_->wrote_state(row, step + 1, state);
    states.push_back(std::move(state));
  }
  sample(row, fed, hidden);
  note("request ", sequence.id, " computes ", row.start, " + ", row.scheduled, " tokens, ", row.drafts,
       row.parents.empty() ? " drafts" : " drafts in a tree", ", keeps ", row.sampled, " up to step ", row.step);
}

void Scheduler::sample(Row& row, const std::vector<Token>& fed, const std::vector<Hidden>& hidden) {
  Sequence& sequence = *row.sequence;
  row.sampled_at = sequence.known();
  row.sampled = 0;
  std::int64_t next = row.scheduled - row.drafts - 1;
  if (row.start + next + 1 < row.sampled_at) return;
  const auto is_kept = [&](std::int64_t draft) {
    return row.parent(draft) == row.step && fed[static_cast<std::size_t>(draft)] == sequence.tokens.back();
  };
  while (next < row.scheduled && sequence.known() < sequence.end_tokens) {
    row.step = static_cast<std::int32_t>(next);
    sequence.tokens.push_back(target(sequence).sample(hidden[static_cast<std::size_t>(next)]));
    ++row.sampled;
    for (++next; next < row.scheduled && !is_kept(next); ++next) {
    }
  }
}

void Scheduler::stop(Sequence& sequence, RequestEnd how) {
  cache_->stop(sequence, how);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.computed = 0;
}

/// `again`: it waits to be started again, before all others. Tokens that were not read back are lost.
void Scheduler::remove(Sequence& sequence, bool again) {
  for (auto* rows : {&under_way_, &rows_})
    for (Row& row : *rows)
      if (row.sequence == &sequence) row.sequence = nullptr;
  sequence.tokens.resize(static_cast<std::size_t>(sequence.read_back));
  const auto at = std::ranges::find(running_, &sequence, &std::unique_ptr<Sequence>::get);
  const std::unique_ptr<Sequence> removed = std::move(*at);
  running_.erase(at);
  const bool complete = removed->known() == removed->end_tokens;
  Answer& answer = answers_[static_cast<std::size_t>(removed->id)];
  if (!again) {
    answer = {.tokens = removed->tokens, .state = Model::empty_state(), .complete = complete, .began = removed->began};
    if (complete) cache_->final_state(*removed, answer.state);
  }
  stop(*removed, again ? RequestEnd::preempted : complete ? RequestEnd::finished : RequestEnd::aborted);
  if (again) waiting_.push_front(std::move(*removed));
}

}  // namespace stateport::engine
