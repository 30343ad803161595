// SPDX-License-Identifier: Apache-2.0
// Prompts that are looked up again, and prompts that wait for a request which computes their prefix.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::slots;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

namespace {

constexpr std::int64_t grid_of(Combination index) {
  return in_columns(index) ? 24 : 4;
}

/// A cache for prompts of up to 9,000 tokens.
RequestCacheOptions large_cache(Combination index, std::int64_t least_tokens) {
  RequestCacheOptions options = small_cache(index);
  options.max_requests = 64;
  options.max_request_tokens = 9000;
  options.kv_tokens = 40'000;
  options.share_running.least_tokens = least_tokens;
  if (in_columns(index))
    for (StateGroup& group : columns(options).groups) group.blocks = 1000;
  else
    slots(options).checkpoints = 200;
  return options;
}

/// A prompt that begins with `shared` tokens that all such prompts have, and then has tokens of its own.
Tokens branch(std::int32_t shared, std::int32_t own, std::int32_t number) {
  Tokens tokens = counting(shared);
  for (std::int32_t i = 0; i < own; ++i) tokens.push_back(1'000'000 + 100 * number + i);
  return tokens;
}

/// Serves prompts together: each step runs what the budget allows, one request after the other. A request ends with the
/// first token that it samples.
class Crowd {
 public:
  explicit Crowd(const RequestCacheOptions& options) : cache(make_request_cache(options)), world_(options) {}

  StartedRequest start(const Tokens& prompt, const Prompt& rest = {}) {
    Prompt wanted = rest;
    wanted.tokens = prompt;
    const auto started = cache->start(wanted);
    REQUIRE(started);
    recount();
    prompts_[order_.emplace_back(started->request)] = prompt;
    return *started;
  }
  void end(RequestId id, RequestEnd how) {
    cache->end(id, how);
    std::erase(order_, id);
    recount();
  }
  [[nodiscard]] bool waits(RequestId id) const { return cache->chunk(id, 9000) == PromptChunk{}; }
  [[nodiscard]] bool runs(RequestId id) const { return std::ranges::find(order_, id) != order_.end(); }
  /// Runs one request alone, if `only` names one. False: no request could run.
  bool step(std::int64_t budget, std::optional<RequestId> only = {}) {
    std::vector<PassRow> rows;
    for (const RequestId id : order_) {
      if (only && id != *only) continue;
      const std::int64_t left = std::ssize(prompts_.at(id)) - cache->computed(id);
      const std::int64_t tokens = cache->chunk(id, std::min(left, budget)).tokens;
      if (tokens == 0) continue;
      rows.push_back({.request = id, .tokens = static_cast<std::int32_t>(tokens)});
      budget -= tokens;
    }
    if (rows.empty()) return false;
    const PassPlan plan = cache->plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    world_.before(plan);
    std::vector<std::int32_t> counts;
    Tokens sampled;
    std::vector<RequestId> ended;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Tokens& prompt = prompts_.at(rows[i].request);
      const auto first = prompt.begin() + plan.rows[i].start;
      world_.run(i, plan.rows[i], {prompt.begin(), first}, {first, first + rows[i].tokens});
      computed_tokens += rows[i].tokens;
      counts.push_back(first + rows[i].tokens == prompt.end() ? 1 : 0);
      if (counts.back() == 0) continue;
      sampled.push_back(7);
      ended.push_back(rows[i].request);
    }
    world_.after(cache->commit(plan.pass, counts, sampled));
    recount();
    for (const RequestId id : ended) {
      cache->finish(id);
      std::erase(order_, id);
    }
    return true;
  }
  void run(std::int64_t budget) {
    while (step(budget)) {
    }
    CHECK(order_.empty());
  }

  std::unique_ptr<RequestCache> cache;
  std::int64_t computed_tokens = 0;
  int calls_between_recounts = 1;  ///< of check_invariants(), which takes most of the time of a large cache

 private:
  void recount() {
    if (++calls_ % calls_between_recounts == 0) cache->check_invariants();
  }

  int calls_ = 0;
  StateWorld world_;
  std::vector<RequestId> order_;
  std::map<RequestId, Tokens> prompts_;
};

template <class Call>
bool is_refused(Call&& call, const std::string& text) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return std::string(error.what()).find(text) != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("64 prompts with a common prefix of 8,192 tokens that arrive at once compute it once") {
  for (const Combination index : every_combination)
    for (const std::int64_t budget : {512, 20'000}) {
      CAPTURE(static_cast<int>(index));
      Crowd crowd(large_cache(index, 256));
      crowd.calls_between_recounts = 16;
      const std::int32_t shared = 8192 / 24 * 24;
      std::optional<RequestId> first;
      for (std::int32_t i = 0; i < 64; ++i) {
        const StartedRequest started = crowd.start(branch(shared, 50, i));
        CHECK(started.waits_for == (first ? std::optional(PrefixWait{*first, shared}) : std::nullopt));
        CHECK(started.lost.has_value() == !first.has_value());
        if (!first) first = started.request;
      }
      crowd.run(budget);
      CHECK(crowd.computed_tokens == shared + 64 * 50);
      const CacheStats& stats = crowd.cache->stats();
      CHECK(stats.requests == 64);
      CHECK(stats.hit_tokens == 63 * shared);
      CHECK(stats.awaited_tokens == 63 * shared);
      CHECK(stats.of(LostHit::never_stored).tokens == shared + 64 * 50);
    }
}

TEST_CASE("16 requests with one prompt compute it once, up to the last state that the forward can start from") {
  for (const Combination index : every_combination)
    for (const std::int32_t length : {2000, 2400, 2401}) {
      CAPTURE(static_cast<int>(index));
      Crowd crowd(large_cache(index, 256));
      for (int i = 0; i < 16; ++i) static_cast<void>(crowd.start(counting(length)));
      crowd.run(700);
      const std::int64_t usable = (length - 1) / grid_of(index) * grid_of(index);
      CHECK(crowd.computed_tokens == length + 15 * (length - usable));
    }
}

TEST_CASE("if the request that computes ends, the next one computes and the others wait for that") {
  for (const Combination index : every_combination)
    for (const RequestEnd how : {RequestEnd::aborted, RequestEnd::preempted}) {
      CAPTURE(static_cast<int>(index));
      Crowd crowd(large_cache(index, 24));
      std::vector<RequestId> ids;
      for (int i = 0; i < 5; ++i) ids.push_back(crowd.start(branch(2400, 10, i)).request);
      CHECK(crowd.step(480));  // the first one alone
      CHECK(crowd.cache->computed(ids[0]) == 480);
      crowd.end(ids[0], how);
      CHECK_FALSE(crowd.waits(ids[1]));
      for (int i = 2; i < 5; ++i) CHECK(crowd.waits(ids[static_cast<std::size_t>(i)]));
      const std::int64_t kept = crowd.cache->computed(ids[1]);  // of the first one's states
      crowd.run(700);
      CHECK(crowd.computed_tokens == 480 + (2400 - kept) + 4 * 10);
    }
}

TEST_CASE("a chain of prompts computes each part once") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 24));
    const RequestId a = crowd.start(branch(240, 240, 0)).request;  // the first 240 tokens are shared
    Tokens deeper = branch(240, 240, 1);
    const StartedRequest b = crowd.start(deeper);
    CHECK(b.waits_for == PrefixWait{a, 240});
    deeper.resize(360);
    for (Token token = 0; token < 30; ++token) deeper.push_back(5'000'000 + token);
    const StartedRequest c = crowd.start(deeper);
    CHECK(c.waits_for == PrefixWait{b.request, 360});
    crowd.run(96);
    CHECK(crowd.computed_tokens == 480 + 240 + 30);
  }
}

TEST_CASE("no prompt waits for a position that the other request begins behind") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 48));
    const RequestId first = crowd.start(counting(600)).request;
    const RequestId second = crowd.start(branch(480, 30, 1)).request;
    CHECK(crowd.step(72));
    CHECK(crowd.waits(second));  // at 480, where it will begin
    CHECK_FALSE(crowd.start(branch(72, 30, 2)).waits_for);
    CHECK(crowd.start(branch(120, 30, 3)).waits_for == PrefixWait{first, 120});
    crowd.run(9000);
  }
}

TEST_CASE("a prompt for which others wait still leaves the state before its tail") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = large_cache(index, 24);
    if (in_columns(index))
      columns(options).tail_tokens = 100;
    else
      slots(options).tail_tokens = 100;
    Crowd crowd(options);
    for (int i = 0; i < 4; ++i) static_cast<void>(crowd.start(counting(240)));
    crowd.run(9000);
    const std::int64_t usable = 239 / grid_of(index) * grid_of(index);
    CHECK(crowd.computed_tokens == 240 + 3 * (240 - usable));
    CHECK(crowd.start(branch(180, 20, 1)).reused_tokens == 140 / grid_of(index) * grid_of(index));
  }
}

TEST_CASE("a prompt that begins to wait changes nothing about passes that are planned") {
  for (const Combination index : test::slot_combinations)
    for (const CheckpointPlacement placement : {CheckpointPlacement::passes, CheckpointPlacement::rungs}) {
      CAPTURE(static_cast<int>(index));
      RequestCacheOptions options = large_cache(index, 24);
      options.overlap = true;
      slots(options).tail_tokens = 100;
      slots(options).placement = placement;
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      const Tokens prompt = counting(240);
      const RequestId first = cache->start({.tokens = prompt})->request;
      const auto plan = [&](std::int32_t tokens) {
        const PassRow row{.request = first, .tokens = tokens};
        const PassPlan pass = cache->plan({&row, 1});
        REQUIRE(pass.ready);
        world.before(pass);
        const auto start = prompt.begin() + pass.rows[0].start;
        world.run(0, pass.rows[0], {prompt.begin(), start}, {start, start + tokens});
        return pass.pass;
      };
      const auto commit = [&](PassId pass) {
        const std::int32_t count = 0;
        world.after(cache->commit(pass, {&count, 1}, {}));
      };
      commit(plan(140));
      commit(plan(20));
      const PassId one = plan(20);
      const PassId two = plan(20);  // both have run when a prompt begins to wait
      CHECK(cache->start({.tokens = prompt})->waits_for);
      commit(one);
      commit(two);
      for (std::int32_t shared = 141; shared < 200; shared += 4) {
        const auto found = cache->start({.tokens = branch(shared, 5, shared), .search = PromptSearch::device});
        REQUIRE(found);
        if (found->reused_tokens > 0)
          world.check(cache->places(found->request), {prompt.begin(), prompt.begin() + found->reused_tokens}, 0);
        cache->abort(found->request);
      }
    }
}

TEST_CASE("no prompt waits for a position that the other request will load") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = test::small(index, {.host_bytes = 100'000});
    options.share_running.least_tokens = 4;
    test::PushedDown server(options);
    const StartedRequest loading = *server.start({.tokens = server.prompt});
    REQUIRE(loading.load);
    Tokens other(server.prompt.begin(), server.prompt.begin() + loading.load->tokens - 4);
    other.push_back(5);
    CHECK_FALSE(server.start({.tokens = other})->waits_for);
  }
}

TEST_CASE("a wait ends after the commits that the option allows") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = large_cache(index, 24);
    options.share_running.longest_commits = 3;
    Crowd crowd(options);
    static_cast<void>(crowd.start(counting(2400)));
    const RequestId second = crowd.start(counting(2400)).request;
    for (int commits = 0; commits < 3; ++commits) {
      CHECK(crowd.waits(second));
      CHECK(crowd.step(24));
    }
    CHECK_FALSE(crowd.waits(second));
    CHECK(crowd.cache->stats().awaited_tokens == crowd.cache->computed(second));
    crowd.run(9000);
  }
}

TEST_CASE("a prompt waits for at least the tokens of the option, for earlier requests alone, and not if it must run") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 96));
    const RequestId first = crowd.start(counting(240)).request;
    CHECK_FALSE(crowd.start(branch(95, 100, 0)).waits_for);
    CHECK(crowd.start(branch(96, 100, 1)).waits_for == PrefixWait{first, 96});
    CHECK_FALSE(crowd.start(branch(240, 10, 2), {.search = PromptSearch::device}).waits_for);
    CHECK_FALSE(crowd.start(branch(240, 10, 3), {.name_space = {.salt = "another"}}).waits_for);
    CHECK_FALSE(crowd.start(branch(240, 10, 4), {.name_space = {.extra_key = "another"}}).waits_for);
    const std::vector<MediaKey> media = {{.id = "image", .first_token = 3}};
    CHECK_FALSE(crowd.start(branch(240, 10, 5), {.media = media}).waits_for);
    // Behind the named position the first request has less to compute.
    CHECK(crowd.step(120));
    CHECK(crowd.cache->computed(first) == 96);
    CHECK_FALSE(crowd.start(branch(180, 10, 6)).waits_for);
    crowd.run(9000);
  }
}

TEST_CASE("eight positions of a request can be waited for; more prompts wait for one of these or not at all") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 48));
    const std::vector<std::int64_t> named = {24, 480};
    const RequestId first = crowd.start(counting(600), {.breakpoints = named}).request;
    for (std::int32_t i = 1; i <= 8; ++i)
      CHECK(crowd.start(branch(48 * i + 24, 10, i)).waits_for == PrefixWait{first, 48 * i + 24});
    CHECK(crowd.start(branch(576, 10, 9)).waits_for == PrefixWait{first, 480});
    CHECK(crowd.start(branch(72, 10, 10)).waits_for == PrefixWait{first, 72});
    CHECK_FALSE(crowd.start(branch(48, 10, 11)).waits_for);
    crowd.run(9000);
    CHECK(crowd.cache->stats().breakpoints_kept == 2);  // those of the prompt alone
    CHECK(crowd.cache->stats().breakpoints_refused == 0);
  }
}

TEST_CASE("positions that a request has passed make room for others") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 24));
    const RequestId first = crowd.start(counting(2400)).request;
    std::vector<RequestId> waiting;
    for (std::int32_t round = 0; round < 3; ++round) {
      for (std::int32_t i = 1; i <= 8; ++i) {
        const std::int32_t at = 480 * round + 48 * i + 24;
        const StartedRequest started = crowd.start(branch(at, 10, 10 * round + i));
        CHECK(started.waits_for == PrefixWait{first, at});
        waiting.push_back(started.request);
      }
      while (crowd.cache->computed(first) < 480 * (round + 1)) REQUIRE(crowd.step(48));
    }
    crowd.run(9000);
  }
}

TEST_CASE("policies that learn hear of the hits of requests that waited") {
  for (const Combination index : test::slot_combinations)
    for (const EvictionOrder order : {EvictionOrder::gdsf, EvictionOrder::hix}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(order));
      RequestCacheOptions options = small_cache(index);
      options.max_requests = 16;
      options.max_request_tokens = 400;
      options.kv_tokens = 16'000;
      options.eviction = order;
      options.memory = {.state_bytes = 1000, .kv_bytes_per_token = 1};
      options.position_tokens = 4;
      options.share_running.least_tokens = 8;
      slots(options).checkpoints = 40;
      slots(options).placement = CheckpointPlacement::last;
      Crowd crowd(options);
      crowd.calls_between_recounts = 50;
      double now_s = 0;
      Token fresh = 100'000;
      const auto start = [&](Tokens prompt, std::int32_t own, double after_s) {
        while (own-- > 0) prompt.push_back(fresh++);
        const std::vector<std::int64_t> named = {128};
        return crowd.start(prompt, {.now_s = now_s += after_s, .breakpoints = named}).reused_tokens;
      };
      // Six prefixes come again and again, in bursts, and prompts that come once between them.
      std::int64_t reused = 0;
      for (int burst = 0; burst < 60; ++burst) {
        const Tokens prefix = counting(128, 1000 * (burst % 6));
        reused += start(prefix, 32, 0.01);
        for (int i = 1; i < 8; ++i) static_cast<void>(start(prefix, 32, 0.01));
        crowd.run(9000);
        for (int i = 0; i < 10; ++i) {
          static_cast<void>(start({}, 160, 0.5));
          crowd.run(9000);
        }
      }
      MESSAGE(reused << " of " << 60 * 128 << " tokens");
      CHECK(reused > 50 * 128);
    }
}

TEST_CASE("a request that waits cannot run, and its hit has no places") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 24));
    const RequestId first = crowd.start(counting(240)).request;
    const RequestId second = crowd.start(counting(240)).request;
    const PassRow row{.request = second, .tokens = 24};
    CHECK(is_refused([&] { static_cast<void>(crowd.cache->plan({&row, 1})); }, "rows.request"));
    CHECK(is_refused([&] { static_cast<void>(crowd.cache->insert(second, 24)); }, "request"));
    CHECK(is_refused([&] { static_cast<void>(crowd.cache->places(second)); }, "waits"));
    CHECK_FALSE(crowd.cache->refresh(second));
    crowd.end(second, RequestEnd::aborted);
    CHECK(is_refused([&] { static_cast<void>(crowd.cache->refresh(second)); }, "is not running"));
    CHECK(crowd.step(24));
    CHECK(is_refused([&] { static_cast<void>(crowd.cache->refresh(first)); }, "has committed a pass"));
    crowd.run(9000);
    CHECK(crowd.computed_tokens == 240);
  }
}

TEST_CASE("requests of old weights are not waited for, and do not wait") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 24));
    static_cast<void>(crowd.start(counting(480)));
    const RequestId second = crowd.start(counting(480)).request;
    CHECK(crowd.waits(second));
    static_cast<void>(crowd.cache->epochs().advance());
    const StartedRequest fresh = crowd.start(counting(480));
    CHECK_FALSE(fresh.waits_for);
    CHECK(crowd.start(counting(480)).waits_for->request == fresh.request);
    CHECK(crowd.step(24));
    CHECK_FALSE(crowd.waits(second));
    CHECK(crowd.cache->computed(second) == 0);
    crowd.run(9000);
  }
}

TEST_CASE("a hit that a later look-up finds is counted, with tiers, too") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = large_cache(index, 0);
    options.tiers.host_bytes = 1 << 20;
    Crowd crowd(options);
    const RequestId first = crowd.start(counting(240)).request;
    const RequestId second = crowd.start(branch(240, 30, 1)).request;
    while (crowd.runs(first)) crowd.step(240, first);
    const auto found = crowd.cache->refresh(second);
    REQUIRE(found);
    CHECK(found->reused_tokens > 0);
    crowd.run(9000);
    CHECK(crowd.cache->stats().hit_tokens == found->reused_tokens);
  }
}

TEST_CASE("a prompt that is looked up again reuses what others computed since it started") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Crowd crowd(large_cache(index, 0));
    const std::vector<std::int64_t> named = {120, 240};
    const RequestId first = crowd.start(counting(240), {.breakpoints = named}).request;
    const StartedRequest second = crowd.start(branch(240, 30, 1));
    CHECK_FALSE(second.waits_for);
    CHECK_FALSE(crowd.cache->refresh(second.request));
    const auto run_alone = [&](std::int32_t tokens) {
      const PassRow row{.request = first, .tokens = tokens};
      const PassPlan plan = crowd.cache->plan({&row, 1});
      CHECK(is_refused([&] { static_cast<void>(crowd.cache->refresh(first)); },
                       crowd.cache->computed(first) == 0 ? "outstanding" : "has committed a pass"));
      const std::int32_t count = crowd.cache->computed(first) + tokens == 240 ? 1 : 0;
      const Token token = 7;
      static_cast<void>(crowd.cache->commit(plan.pass, {&count, 1}, {&token, static_cast<std::size_t>(count)}));
    };
    run_alone(120);
    const auto found = crowd.cache->refresh(second.request);
    REQUIRE(found);
    CHECK(found->request == second.request);
    CHECK(found->reused_tokens == 120);
    CHECK(crowd.cache->computed(second.request) == 120);
    CHECK_FALSE(crowd.cache->refresh(second.request));
    // Memory that a plan took which did not run is free again.
    const PassRow row{.request = second.request, .tokens = 100};
    const std::int64_t before = crowd.cache->usage().kv_tokens;
    crowd.cache->cancel(crowd.cache->plan({&row, 1}).pass);
    run_alone(120);
    CHECK(crowd.cache->refresh(second.request)->reused_tokens == 240);
    crowd.cache->check_invariants();
    CHECK(crowd.cache->usage().kv_tokens == before + 120);
    const CacheStats& stats = crowd.cache->stats();
    CHECK(stats.requests == 1);  // the second one has not begun
    crowd.end(second.request, RequestEnd::aborted);
    CHECK(stats.requests == 2);
    CHECK(stats.requests_hit == 1);
    CHECK(stats.hit_tokens == 240);
    CHECK(stats.of(LostHit::never_stored).tokens == 240 + 30);
    CHECK(stats.awaited_tokens == 0);
  }
}

TEST_CASE(
    "a prompt that is looked up again leaves a checkpoint where it branches off from what others computed since") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    if (in_columns(index)) continue;
    RequestCacheOptions options = large_cache(index, 0);
    slots(options).placement = CheckpointPlacement::branch;
    Crowd crowd(options);
    const StartedRequest first = crowd.start(branch(240, 100, 2));
    const StartedRequest second = crowd.start(branch(240, 100, 1));
    CHECK(second.lost_tokens == 0);
    while (crowd.runs(first.request)) crowd.step(90, first.request);
    const auto found = crowd.cache->refresh(second.request);
    REQUIRE(found);
    CHECK(found->reused_tokens == 0);
    CHECK(found->lost == LostHit::no_checkpoint);
    CHECK(found->lost_tokens == 240);
    CHECK_FALSE(crowd.cache->refresh(second.request));
    crowd.run(9000);
    CHECK(crowd.start(branch(240, 100, 3)).reused_tokens == 240);
  }
}

TEST_CASE(
    "whatever a crowd of requests does, every pass reads its own state, and each refresh finds what a start finds") {
  for (const Combination index : every_combination)
    for (const bool tiers : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers);
      test::RandomRuns runs;
      test::for_each_seed(200, [&](test::Random& random, std::uint64_t) {
        RequestCacheOptions options = test::random_options(random, index);
        options.max_requests = random.between32(2, 8);
        options.kv_tokens += random.between(0, 400);
        if (in_columns(index))
          for (StateGroup& group : columns(options).groups) group.blocks += random.between32(0, 40);
        if (tiers) options.tiers = test::random_tiers(random, options);
        if (!in_columns(index) && random.chance(20)) test::draw_arena(random, options);
        test::RandomEngine engine(random, options);
        engine.habits.crowds = true;
        if (random.chance(30)) engine.habits.changes_weights = true;
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 200) continue;
      MESSAGE(runs.waits << " waits, " << runs.refreshed << " found more, " << runs.hits << " hits");
      CHECK(runs.waits > 60);
      CHECK(runs.refreshed > 40);
    }
}

namespace {

/// Prompts that share beginnings start, run in small passes, end or are given up in any order. Returns how many waited.
int run_waits(test::Random& random, Combination index) {
  RequestCacheOptions options = small_cache(index);
  options.max_requests = random.between32(2, 8);
  options.kv_tokens = 1000;
  if (in_columns(index))
    for (StateGroup& group : columns(options).groups) group.blocks = 100;
  options.overlap = random.chance(30);
  options.share_running = {.least_tokens = random.between(1, 30), .longest_commits = 1'000'000};
  const auto cache = make_request_cache(options);
  std::map<RequestId, std::int64_t> prompts;
  int waits = 0;
  for (int step = 0; step < 40 || !prompts.empty(); ++step) {
    if (step < 40 && random.chance(60)) {
      Tokens prompt = branch(random.between32(1, 60), random.between32(1, 10), random.between32(0, 3));
      for (Token& token : prompt) token += 1000 * (step / 6);  // no prompt finds those that came long before
      if (const auto started = cache->start({.tokens = prompt})) {
        waits += started->waits_for.has_value();
        prompts[started->request] = std::ssize(prompt);
      }
    }
    std::vector<PassRow> rows;
    std::vector<std::int32_t> counts;
    Tokens sampled;
    int ready = 0;
    for (const auto& [id, prompt] : prompts) {
      const PromptChunk chunk = cache->chunk(id, random.between(24, 48));
      ready += chunk != PromptChunk{};
      if (chunk.tokens == 0 || random.chance(30)) continue;
      const auto tokens = static_cast<std::int32_t>(std::min(chunk.tokens, prompt - cache->computed(id)));
      rows.push_back({.request = id, .tokens = tokens});
      counts.push_back(cache->computed(id) + tokens == prompt ? 1 : 0);
      if (counts.back() == 1) sampled.push_back(7);
    }
    REQUIRE((prompts.empty() || ready > 0));  // one can always run
    const PassPlan plan = cache->plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    static_cast<void>(cache->commit(plan.pass, counts, sampled));
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (counts[i] == 1) {
        cache->finish(rows[i].request);
        prompts.erase(rows[i].request);
      }
    if (!prompts.empty() && random.chance(15)) {
      auto at = prompts.begin();
      std::advance(at, random.between(0, std::ssize(prompts) - 1));
      cache->end(at->first, static_cast<RequestEnd>(random.between(1, 2)));
      prompts.erase(at);
    }
    cache->check_invariants();
  }
  return waits;
}

}  // namespace

TEST_CASE("whatever waits and ends, a request can always run, and each one gets to its end") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    std::int64_t waits = 0, seeds = 0;
    test::for_each_seed(2000, [&](test::Random& random, std::uint64_t) {
      waits += run_waits(random, index);
      ++seeds;
    });
    if (seeds >= 2000) CHECK(waits > 1000);
  }
}

TEST_CASE("options with which no prompt can wait are refused") {
  RequestCacheOptions options = small_cache(Combination::hash_columns);
  options.share_running.least_tokens = -1;
  CHECK(is_refused([&] { static_cast<void>(make_request_cache(options)); }, "share_running.least_tokens = -1"));
  options.share_running = {.least_tokens = 8, .longest_commits = 0};
  CHECK(is_refused([&] { static_cast<void>(make_request_cache(options)); }, "share_running.longest_commits = 0"));
  options.share_running = {.least_tokens = INT64_MAX, .longest_commits = INT32_MAX};
  Crowd crowd(options);
  for (int i = 0; i < 2; ++i) CHECK_FALSE(crowd.start(counting(48)).waits_for);
  options.share_running = {.least_tokens = 8, .longest_commits = 1};
  columns(options).mode = AlignMode::none;
  CHECK(is_refused([&] { static_cast<void>(make_request_cache(options)); }, "share_running.least_tokens = 8"));
}
