// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include "combination.hpp"
#include "violation.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <variant>

namespace stateport::soak {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{120};  ///< for transfers; they take microseconds
constexpr std::int64_t steps_without_start_max = 20000;
constexpr std::array below = {Medium::host, Medium::file, Medium::remote};

void lose_pages() {
  constexpr std::size_t bytes = 16 * 1024;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages != MAP_FAILED) std::memset(pages, 1, bytes);
}

}  // namespace

void Figures::add(const Figures& other) {
  requests += other.requests;
  prompt_tokens += other.prompt_tokens;
  hit_tokens += other.hit_tokens;
  loaded_tokens += other.loaded_tokens;
  loads += other.loads;
  failed_loads += other.failed_loads;
  passes_ahead += other.passes_ahead;
  cancelled_passes += other.cancelled_passes;
  refused_calls += other.refused_calls;
  preempted += other.preempted;
  aborted += other.aborted;
  resets += other.resets;
  epochs += other.epochs;
  forks += other.forks;
  kv_moves += other.kv_moves;
  memory_moves += other.memory_moves;
  restarts += other.restarts;
  found_images += other.found_images;
  checks += other.checks;
  withdrawn += other.withdrawn;
}

std::size_t Engine::StoredHash::operator()(const CacheEvent& event) const noexcept {
  return static_cast<std::size_t>(event.prefix.words[0]) ^ static_cast<std::size_t>(event.medium) * 0x9E3779B9u ^
         static_cast<std::size_t>(event.content) << 7 ^ static_cast<std::size_t>(event.group) << 8;
}

bool Engine::SameContent::operator()(const CacheEvent& a, const CacheEvent& b) const noexcept {
  return a.prefix == b.prefix && a.medium == b.medium && a.content == b.content && a.group == b.group;
}

Engine::Engine(test::Random& random, Workload& workload, EngineSetup setup, MakeMover make_mover)
    : random_(random), workload_(workload), setup_(std::move(setup)), make_mover_(std::move(make_mover)) {
  // Engines that began together do not restart together.
  if (setup_.requests_of_life > 0)
    next_restart_ = random_.between(setup_.requests_of_life / 2, setup_.requests_of_life);
  next_reset_ = setup_.requests_to_reset;
  next_epoch_ = setup_.requests_to_epoch;
  open();
}

Engine::~Engine() = default;

void Engine::open() {
  world_ = std::make_unique<MarkWorld>(setup_.options);
  if (setup_.planted == Planted::state) world_->lose_every_copies = 1000;
  mover_ = make_mover_(*world_);
  cache_ = make_request_cache(setup_.options);
  if (setup_.options.integrity) checked_.emplace(*cache_, *world_);
  if (cache_->arena() != nullptr) arena_.emplace(*cache_, *world_);
  now_s_ = 0;
  sequence_ = 0;
  stored_.clear();
  for (const ImageKey& image : mover_->found()) {
    const bool is_taken = cache_->tiers()->attach(Medium::file, image);
    if (!is_taken) mover_->remove(image);
    figures_.found_images += is_taken;
  }
}

void Engine::close() {
  figures_ = figures();
  arena_.reset();
  checked_.reset();
  cache_.reset();
  mover_.reset();
  world_.reset();
}

Figures Engine::figures() const {
  Figures all = figures_;
  if (!cache_) return all;
  const CacheStats& stats = cache_->stats();
  all.prompt_tokens += stats.prompt_tokens;
  all.hit_tokens += stats.hit_tokens;
  if (CacheArena* const arena = cache_->arena()) all.memory_moves += arena->usage().moves;
  if (CacheIntegrity* const integrity = cache_->integrity()) {
    all.checks += integrity->usage().reads;
    all.withdrawn += integrity->usage().withdrawn_states;
  }
  for (const Medium medium : below) {
    const TierUsage usage = cache_->tiers()->usage(medium);
    all.loads += usage.loads;
    all.loaded_tokens += usage.hit_tokens;
  }
  return all;
}

void Engine::step() {
  start();
  end_some();
  if (random_.chance(3)) fork_some();
  plan();
  if (planned_ && !second_ && random_.chance(2)) cancel();
  if (!pass_ || (planned_ && planned_->ready && random_.chance(50))) run();
  if (pass_ && random_.chance(80)) commit();
  if (!pass_) run();
  if (!setup_.options.overlap && pass_) commit();
  if (random_.chance(1)) refused();
  if (checked_) check_more();
  if (arena_) arena_->step(random_);
  const std::int64_t rare = random_.between(0, 9999);
  if (rare < 20) mover_->strike();
  if (rare >= 20 && rare < 25) take(cache_->tiers()->drain());
  if (may_begin() && mover_->under_way() > 0) settle(false);
  follow_events();
  if (setup_.requests_of_life > 0 && figures_.requests >= next_restart_) restart();
  if (setup_.requests_to_epoch > 0 && figures_.requests >= next_epoch_) change_weights();
  if (setup_.requests_to_reset > 0 && figures_.requests >= next_reset_) reset();
}

void Engine::take(TransferPlan transfers) {
  if (checked_) checked_->begin();
  mover_->take(transfers);
  if (checked_) checked_->end();
}

void Engine::check_more() {
  if (setup_.planted == Planted::write && random_.chance(5)) checked_->write_to_some(random_);
  if (random_.chance(1)) checked_->withdraw_some(random_);
}

void Engine::rest() {
  while (pass_ || planned_) {
    if (!pass_) run();
    if (pass_) commit();
  }
  while (!running_.empty()) end(running_.begin()->first, RequestEnd::finished);
  settle(true);
  follow_events();
  cache_->check_invariants();
  check_rest();
}

void Engine::restart() {
  next_restart_ += setup_.requests_of_life;
  rest();
  drain();
  close();
  open();
  ++figures_.restarts;
}

void Engine::change_weights() {
  next_epoch_ += setup_.requests_to_epoch;
  setup_.options.epoch = cache_->epochs().advance();
  for (const auto& [id, live] : running_)
    must(cache_->epochs().is_stale(id), "a request of older weights is not stale");
  take(cache_->tiers()->settle({}).transfers);
  ++figures_.epochs;
}

void Engine::reset() {
  next_reset_ += setup_.requests_to_reset;
  rest();
  cache_->reset();
  take(cache_->tiers()->settle({}).transfers);
  follow_events();
  must(stored_.empty(), "a reset leaves something that events say is stored");
  for (const Medium medium : {Medium::host, Medium::file})
    must(mover_->images(medium) == 0, "a reset leaves images in a tier");
  ++figures_.resets;
}

void Engine::drain() {
  std::int64_t written = -1;
  const auto bytes = [&] { return cache_->tiers()->usage(Medium::file).bytes_written; };
  for (int round = 0; round < 8 && written < bytes(); ++round) {
    written = bytes();
    take(cache_->tiers()->drain());
    settle(true);
  }
}

void Engine::check_invariants() const {
  cache_->check_invariants();
  mover_->check_invariants();
}

void Engine::check_rest() const {
  must(cache_->running_requests() == 0, "requests run in a cache where all have ended");
  must(cache_->tiers()->transfers_under_way() == 0, "transfers are under way where all were answered");
  const auto groups = static_cast<std::int64_t>(group_count(setup_.options));
  for (const Medium medium : {Medium::host, Medium::file}) {
    const TierUsage usage = cache_->tiers()->usage(medium);
    const std::int64_t held = mover_->images(medium);
    must(held == usage.states * groups + usage.kv_blocks,
         fmt::format("tier {} holds {} images, its cache says {} states of {} groups and KV of {} blocks",
                     static_cast<int>(medium), held, usage.states, groups, usage.kv_blocks));
  }
  const CacheUsage usage = cache_->usage();
  const RequestCacheOptions& options = setup_.options;
  if (in_columns(options)) return;
  const std::int64_t budget_bytes = std::get<SlotLayout>(options.layout).budget_bytes;
  if (budget_bytes > 0 && (options.index == CacheIndex::hash || options.eviction == EvictionOrder::hix))
    must(options.memory.of(usage.kv_tokens, usage.states) <= budget_bytes, "a cache exceeds its budget");
  if (!options.events) return;
  const auto of = [&](CacheContent content) {
    return std::ranges::count_if(stored_, [&](const CacheEvent& stored) {
      return stored.medium == Medium::device && stored.content == content;
    });
  };
  // Two requests that made the same at a time may both have kept it: it is found once.
  const bool is_tree = options.index == CacheIndex::tree;
  const std::int64_t states = of(CacheContent::state);
  const std::int64_t blocks = of(CacheContent::kv_block);
  const std::int64_t held = usage.kv_tokens / options.block_size_tokens;
  must(is_tree ? states == usage.states : states <= usage.states, "events tell of other states than a cache has");
  must(is_tree ? blocks == held : blocks <= held, "events tell of other KV than a cache has");
}

RequestId Engine::pick() {
  auto at = running_.begin();
  std::advance(at, random_.between(0, std::ssize(running_) - 1));
  return at->first;
}

ReuseHint Engine::random_hint(std::size_t conversation) {
  return {.last_turn = random_.chance(10),
          .expected_idle_s = random_.chance(10) ? 30.0 : 0,
          .session = random_.chance(50) ? conversation + 1 : 0};
}

/// Pins the prompt for a while, prefetches it, or closes a session.
void Engine::hold(const Prompt& prompt) {
  if (cache_->sessions() != nullptr && random_.chance(5))
    static_cast<void>(cache_->sessions()->close(1 + static_cast<std::uint64_t>(random_.between(0, 50))));
  if (cache_->prefixes() == nullptr || std::ssize(prompt.tokens) >= setup_.options.max_request_tokens) return;
  if (random_.chance(5))
    static_cast<void>(cache_->prefixes()->pin(prompt, static_cast<double>(random_.between(1, 40))));
  if (setup_.options.prefixes.prefetches > 0 && random_.chance(10))
    take(cache_->prefixes()->prefetch(prompt).transfers);
  const PrefixUsage& usage = cache_->prefixes()->usage();
  must(usage.pinned_bytes <= setup_.options.prefixes.pinned_bytes, "pins keep more bytes than allowed");
}

void Engine::start() {
  if (!may_begin() || std::cmp_greater_equal(running_.size(), setup_.options.max_requests) || random_.chance(30))
    return;
  Workload::Request request = workload_.next();
  constexpr std::array tenants = {Namespace{}, Namespace{.salt = "one"}, Namespace{.salt = "two"},
                                  Namespace{.extra_key = "two"}};
  constexpr std::array<std::string_view, 6> media_ids = {"a", "b", "c", "d", "e", "f"};
  const MediaKey media{.id = media_ids[static_cast<std::size_t>(request.names.media)],
                       .first_token = request.names.media_at};
  const auto search = static_cast<PromptSearch>(std::max(random_.between32(-5, 2), 0));
  hold({.tokens = request.prompt,
        .name_space = tenants[static_cast<std::size_t>(request.names.tenant)],
        .media = std::span(&media, request.names.media_at >= 0 ? 1 : 0),
        .now_s = now_s_});
  const auto started = cache_->start({.tokens = request.prompt,
                                      .name_space = tenants[static_cast<std::size_t>(request.names.tenant)],
                                      .media = std::span(&media, request.names.media_at >= 0 ? 1 : 0),
                                      .hint = random_hint(request.conversation),
                                      .now_s = now_s_ += 0.25,
                                      .search = search});
  if (!started) {
    if (steps_without_start_++ == 0) waits_since_ = Clock::now();
    // Threads of real tiers may have no processor for a while, and an idle engine takes many steps meanwhile.
    const bool waits = mover_->under_way() > 0 && Clock::now() - waits_since_ < patience;
    if (waits && running_.empty()) std::this_thread::yield();
    if (waits || steps_without_start_ < steps_without_start_max) return;
    throw Violation(fmt::format(
        "{}: a cache starts no request any more: {} of the engine run, {} of the cache, {} transfers of the cache are "
        "under way, {} of the tiers, {} states and {} tokens of KV are held",
        setup_.name, running_.size(), cache_->running_requests(), cache_->tiers()->transfers_under_way(),
        mover_->under_way(), cache_->usage().states, cache_->usage().kv_tokens));
  }
  steps_without_start_ = 0;
  ++figures_.requests;
  take(started->transfers);
  must(search != PromptSearch::device || !started->load, "a load for a request that asked for none");
  must(started->load.has_value() == cache_->tiers()->is_loading(started->request), "a load that is not under way");
  must((started->lost.value_or(LostHit::never_stored) != LostHit::never_stored) == (started->lost_tokens > 0),
       "lost tokens without a reason");
  must(started->reused_tokens < std::ssize(request.prompt), "a hit on a whole prompt");
  Live live{.request = request, .tokens = request.prompt, .read_back = request.prompt.size()};
  live.prompt = std::ssize(request.prompt);
  live.loading_tokens = started->load ? std::optional(started->load->tokens) : std::nullopt;
  live.reused_tokens = started->reused_tokens;
  live.marks.push_back(cache_->epochs().current());  // other weights make other states of the same tokens
  for (const Token token : live.tokens)
    live.marks.push_back(next_mark(live.marks.back(), request.names.seen(std::ssize(live.marks) - 1, token)));
  must(running_.emplace(started->request, std::move(live)).second, "one number for two requests");
}

void Engine::end_some() {
  if (running_.empty()) return;
  if (random_.chance(starved_ ? 20 : 1)) return end(pick(), RequestEnd::preempted);
  if (random_.chance(1)) return end(pick(), RequestEnd::aborted);
  for (const auto& [id, live] : running_)
    if (std::cmp_greater_equal(live.read_back, live.prompt + live.request.output)) return end(id, RequestEnd::finished);
}

void Engine::end(RequestId id, RequestEnd how) {
  Live& live = running_.at(id);
  live.tokens.resize(live.read_back);
  workload_.ended(live.request, live.tokens);
  bool is_in_pass = false;
  for (auto* batch : {&pass_, &planned_})
    if (*batch)
      for (RunRow& row : (*batch)->rows) {
        is_in_pass |= row.request == id;
        row.live &= row.request != id;
      }
  const std::size_t conversation = live.request.conversation;
  running_.erase(id);
  figures_.preempted += how == RequestEnd::preempted;
  figures_.aborted += how == RequestEnd::aborted;
  if (setup_.planted == Planted::slot && !is_in_pass) return;
  if (setup_.planted == Planted::pages) lose_pages();
  const EndedRequest ended = cache_->end(id, how, random_hint(conversation));
  if (checked_) checked_->begin();
  mover_->take(ended.transfers);
  world_->after_end(ended.copies);
  if (checked_) checked_->end();
}

/// A request that stands behind its prompt goes on in some other ways, too.
void Engine::fork_some() {
  if (running_.empty()) return;
  const RequestId id = pick();
  const Live& live = running_.at(id);
  const std::int64_t computed = cache_->computed(id);
  bool is_free =
      computed >= live.prompt && computed > live.fork_at && computed + 40 < setup_.options.max_request_tokens;
  for (const auto* batch : {&pass_, &planned_})
    for (std::size_t i = 0; *batch && i < (*batch)->rows.size(); ++i) is_free &= (*batch)->rows[i].request != id;
  if (!is_free) return;
  std::array<RequestId, 3> forks;
  const auto count = static_cast<std::size_t>(random_.between(1, std::ssize(forks)));
  const std::int64_t each = random_.chance(70) ? 1 : random_.between(2, 20);
  Tokens tokens;
  while (std::cmp_less(tokens.size(), static_cast<std::int64_t>(count) * each))
    tokens.push_back(random_.between32(0, 9));
  if (!cache_->fork(id, tokens, std::span(forks).first(count))) return;
  for (std::size_t i = 0; i < count; ++i) {
    Live fork{.request = live.request, .tokens = {live.tokens.begin(), live.tokens.begin() + computed}};
    fork.marks.assign(live.marks.begin(), live.marks.begin() + computed + 1);
    for (std::int64_t own = 0; own < each; ++own) {
      const Token token = tokens[i * static_cast<std::size_t>(each) + static_cast<std::size_t>(own)];
      fork.marks.push_back(next_mark(fork.marks.back(), fork.request.names.seen(std::ssize(fork.tokens), token)));
      fork.tokens.push_back(token);
    }
    fork.read_back = fork.tokens.size();
    fork.prompt = each == 1 ? computed : std::ssize(fork.tokens);
    fork.reused_tokens = computed;
    fork.scheduled = true;
    fork.fork_at = computed;
    must(running_.emplace(forks[i], std::move(fork)).second, "one number for two requests");
    ++figures_.forks;
  }
}

std::vector<PassRow> Engine::next_rows() {
  const RequestCacheOptions& options = setup_.options;
  std::vector<PassRow> rows;
  for (auto& [id, live] : running_) {
    if (!live.scheduled && cache_->chunk(id, 1000) != PromptChunk{}) {
      const auto more = cache_->refresh(id);
      if (more) take(more->transfers);
      must(!more || more->reused_tokens > live.reused_tokens ||
               (more->reused_tokens == live.reused_tokens && more->lost_tokens > 0),
           "a refresh that finds no more answers something");
      live.scheduled = true;
    }
    std::int64_t low = cache_->computed(id);
    if (pass_)
      for (const RunRow& row : pass_->rows)
        if (row.request == id && row.live && row.room) low += row.tokens - row.drafts;
    if (low < live.prompt) {
      const auto tokens = static_cast<std::int32_t>(cache_->chunk(id, random_.between(0, 120)).tokens);
      if (tokens > 0) rows.push_back({.request = id, .tokens = tokens});
    } else if (low + 2 * (1 + options.drafts) + 1 < options.max_request_tokens &&
               cache_->chunk(id, 1) != PromptChunk{}) {  // its forks have begun
      std::int32_t drafts = random_.between32(0, options.drafts);
      if (test::is_mode_all(options) && drafts < options.drafts) drafts = 0;
      rows.push_back({.request = id, .tokens = 1 + drafts, .drafts = drafts});
    }
  }
  return rows;
}

void Engine::plan() {
  if (planned_ || (pass_ && !setup_.options.overlap)) return;
  const std::vector<PassRow> rows = next_rows();
  std::vector<std::int32_t> parents;
  if (!in_columns(setup_.options) && random_.chance(50))
    for (const PassRow& row : rows)
      for (std::int32_t draft = 0; draft < row.drafts; ++draft) parents.push_back(random_.between32(0, draft));
  const PassPlan plan = cache_->plan(rows, parents);
  take(plan.transfers);
  if (arena_) arena_->take(plan.memory);
  planned_.emplace();
  planned_->has_parents = !parents.empty();
  planned_->pass = plan.pass;
  planned_->ready = plan.ready;
  if (plan.ready) plan_ = plan;
  starved_ = plan.rows_without_room > 0;
  for (std::size_t i = 0; i < rows.size(); ++i)
    planned_->rows.push_back(
        {.request = rows[i].request, .drafts = rows[i].drafts, .tokens = rows[i].tokens, .room = plan.rows[i].room});
  auto parent = parents.begin();
  for (RunRow& row : planned_->rows) {
    if (parents.empty()) break;
    row.parents.assign(parent, parent + row.drafts);
    parent += row.drafts;
  }
  figures_.passes_ahead += pass_.has_value();
}

void Engine::cancel() {
  cache_->cancel(planned_->pass);
  planned_.reset();
  ++figures_.cancelled_passes;
}

void Engine::run() {
  if (pass_ || !planned_) {
    // Two passes run before the first is read back.
    if (!pass_ || !planned_ || !planned_->ready || second_) return;
    run_rows();
    second_ = true;
    return;
  }
  run_rows();
  pass_ = std::move(planned_);
  planned_.reset();
}

void Engine::run_rows() {
  world_->before(plan_);
  for (std::size_t i = 0; i < planned_->rows.size(); ++i) {
    RunRow& row = planned_->rows[i];
    if (row.room && row.live) run_row(i, row);
  }
}

void Engine::run_row(std::size_t index, RunRow& row) {
  Live& live = running_.at(row.request);
  const RowPlan& plan = plan_.rows[index];
  const std::int64_t given = plan.start + row.tokens - row.drafts;
  must(given <= std::ssize(live.tokens), "a pass runs over tokens that are not known");
  must(row.drafts == 0 || given == std::ssize(live.tokens), "drafts behind a token that is not the last");
  row.sampled_at = live.tokens.size();
  if (!row.parents.empty()) return run_tree(index, row);
  const auto append = [&](Token token) {
    live.marks.push_back(next_mark(live.marks.back(), live.request.names.seen(std::ssize(live.tokens), token)));
    live.tokens.push_back(token);
  };
  for (std::int32_t draft = 0; draft < row.drafts; ++draft) append(random_.between32(0, 9));
  world_->run(index, plan, live.marks);
  if (given < live.prompt) return;
  // The first drafts are accepted, and one token more is sampled.
  const std::int32_t accepted = random_.between32(0, row.drafts);
  live.tokens.resize(row.sampled_at + static_cast<std::size_t>(accepted));
  live.marks.resize(live.tokens.size() + 1);
  append(random_.between32(0, 9));
  row.sampled = accepted + 1;
}

/// Of the children of a step one may be accepted, and then of its own.
void Engine::run_tree(std::size_t index, RunRow& row) {
  Live& live = running_.at(row.request);
  const RowPlan& plan = plan_.rows[index];
  std::vector<MarkWorld::Step> steps = {{.tokens = plan.start + 1, .mark = live.marks.back()}};
  row.step = 0;
  const auto append = [&](const MarkWorld::Step& step, Token token) {
    live.tokens.push_back(token);
    live.marks.push_back(step.mark);
    ++row.sampled;
  };
  const auto after = [&](const MarkWorld::Step& step, Token token) {
    return MarkWorld::Step{step.tokens + 1, next_mark(step.mark, live.request.names.seen(step.tokens, token))};
  };
  for (std::size_t draft = 0; draft < row.parents.size(); ++draft) {
    const auto token = random_.between32(0, 9);
    steps.push_back(after(steps[static_cast<std::size_t>(row.parents[draft])], token));
    if (row.parents[draft] != row.step || random_.chance(30)) continue;
    row.step = static_cast<std::int32_t>(draft) + 1;
    append(steps.back(), token);
  }
  world_->run_tree(index, plan, live.marks, steps);
  const auto token = random_.between32(0, 9);
  append(after(steps[static_cast<std::size_t>(row.step)], token), token);
}

void Engine::commit() {
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> steps;
  Tokens sampled;
  for (const RunRow& row : pass_->rows) {
    counts.push_back(row.live ? row.sampled : 0);
    if (pass_->has_parents) steps.push_back(row.step);
    if (counts.back() == 0) continue;
    Live& live = running_.at(row.request);
    const auto first = live.tokens.begin() + static_cast<std::ptrdiff_t>(row.sampled_at);
    sampled.insert(sampled.end(), first, first + row.sampled);
    live.read_back = row.sampled_at + static_cast<std::size_t>(row.sampled);
  }
  const PassCommit commit = cache_->commit(pass_->pass, counts, sampled, steps);
  if (setup_.planted != Planted::move) world_->move_kv(commit.kv_moves);
  figures_.kv_moves += std::ssize(commit.kv_moves);
  if (checked_) checked_->begin();
  mover_->take(commit.transfers);
  world_->after(commit);
  if (arena_) arena_->take(commit.memory);
  if (checked_) checked_->end();
  if (!second_) check_states(*pass_);
  pass_.reset();
  if (commit.next) {
    planned_->ready = commit.next->ready;
    if (commit.next->ready) plan_ = *commit.next;
  }
  if (second_) {
    pass_ = std::move(planned_);
    planned_.reset();
    second_ = false;
  }
}

void Engine::check_states(const Batch& batch) const {
  for (const RunRow& row : batch.rows) {
    if (!row.live || !row.room) continue;
    const Live& live = running_.at(row.request);
    const std::int64_t computed = cache_->computed(row.request);
    for (std::size_t g = 0; g < group_count(setup_.options); ++g)
      must(world_->holds(cache_->state(row.request, g), g, computed, live.marks[static_cast<std::size_t>(computed)]),
           "a commit leaves the state of other tokens");
  }
}

void Engine::settle(bool all) {
  const Clock::time_point begin = Clock::now();
  do {
    must(Clock::now() - begin < patience, "transfers are not answered");
    results_.clear();
    mover_->poll(results_, all);
    take(cache_->tiers()->settle(results_).transfers);
    follow_loads();
  } while (all && mover_->under_way() > 0);
}

/// A load brings all that was announced, or nothing.
void Engine::follow_loads() {
  for (auto& [id, live] : running_) {
    if (!live.loading_tokens || cache_->tiers()->is_loading(id)) continue;
    const std::int64_t computed = cache_->computed(id);
    if (*live.loading_tokens == 0) {
      must(computed >= live.reused_tokens, "a request lost its prefix while it waited");
    } else {
      must(computed == *live.loading_tokens || computed == live.reused_tokens, "a load brought a part");
      figures_.failed_loads += computed != *live.loading_tokens;
    }
    live.loading_tokens.reset();
  }
}

void Engine::follow_events() {
  if (!setup_.options.events) return;
  std::array<CacheEvent, 64> events;
  while (const std::size_t count = cache_->take_events(events)) {
    for (const CacheEvent& event : std::span(events).first(count)) {
      must(event.sequence == ++sequence_, "events are missing");
      if (setup_.planted == Planted::events) kept_.push_back(event);
      if (event.kind == CacheEvent::Kind::cleared) stored_.clear();
      if (event.kind == CacheEvent::Kind::stored)
        must(stored_.insert(event).second, "a stored event for a stored content");
      if (event.kind == CacheEvent::Kind::removed)
        must(stored_.erase(event) == 1, "a removed event for a content that is not stored");
    }
  }
}

}  // namespace stateport::soak
