// SPDX-License-Identifier: Apache-2.0
// Requests that go on from the computed tokens of another one.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

namespace {

/// Serves requests and their forks in passes that a test chooses, over a StateWorld.
class Forks {
 public:
  explicit Forks(const RequestCacheOptions& options) : cache(make_request_cache(options)), world(options) {}

  RequestId start(const Tokens& prompt) {
    const auto started = cache->start({.tokens = prompt});
    REQUIRE(started);
    tokens[started->request] = prompt;
    return started->request;
  }
  /// In as many passes as the cache asks for. Samples a token.
  void run_prompt(RequestId request) {
    const Tokens prompt = tokens.at(request);
    for (std::int64_t computed = 0; computed < std::ssize(prompt);) {
      computed += cache->chunk(request, std::ssize(prompt) - computed).tokens;
      tokens.at(request).assign(prompt.begin(), prompt.begin() + computed);
      step({request}, computed == std::ssize(prompt) ? std::optional<Token>(7) : std::nullopt);
    }
  }
  /// A fork for each of these tokens.
  std::vector<RequestId> fork(RequestId request, const Tokens& next) {
    std::vector<RequestId> forks(next.size());
    REQUIRE(cache->fork(request, next, forks));
    cache->check_invariants();
    const auto computed = tokens.at(request).begin() + cache->computed(request);
    for (std::size_t i = 0; i < forks.size(); ++i) {
      tokens[forks[i]].assign(tokens.at(request).begin(), computed);
      tokens[forks[i]].push_back(next[i]);
    }
    return forks;
  }
  /// One row for each request, which feeds all that it knows.
  PassPlan pass(const std::vector<RequestId>& requests) {
    std::vector<PassRow> rows;
    for (const RequestId id : requests)
      rows.push_back(
          {.request = id, .tokens = static_cast<std::int32_t>(std::ssize(tokens.at(id)) - cache->computed(id))});
    const PassPlan plan = cache->plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    REQUIRE(plan.ready);
    world.before(plan);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Tokens& all = tokens.at(rows[i].request);
      const auto first = all.begin() + plan.rows[i].start;
      world.run(i, plan.rows[i], {all.begin(), first}, {first, all.end()});
    }
    return plan;
  }
  void commit(const PassPlan& plan, std::optional<Token> sampled = 7) {
    const std::vector<std::int32_t> counts(plan.rows.size(), sampled ? 1 : 0);
    const Tokens all(sampled ? plan.rows.size() : 0, sampled.value_or(0));
    std::vector<RequestId> ids;
    for (const RowPlan& row : plan.rows) ids.push_back(row.request);
    world.after(cache->commit(plan.pass, counts, all));
    for (const RequestId id : ids)
      if (sampled) tokens.at(id).push_back(*sampled);
    cache->check_invariants();
  }
  void step(const std::vector<RequestId>& requests, std::optional<Token> sampled = 7) {
    commit(pass(requests), sampled);
  }

  std::unique_ptr<RequestCache> cache;
  StateWorld world;
  std::map<RequestId, Tokens> tokens;
};

RequestCacheOptions cache_for_forks(Combination index, std::int32_t drafts = 0) {
  RequestCacheOptions options = small_cache(index, drafts);
  options.max_requests = 8;
  return options;
}

}  // namespace

TEST_CASE("forks go on from the state and the KV of a request, wherever it stands") {
  for (const Combination index : every_combination)
    for (const std::int32_t drafts : {0, 2})
      for (std::int32_t prompt = 1; prompt <= 30; ++prompt) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(prompt);
        Forks forks(cache_for_forks(index, drafts));
        const RequestId point = forks.start(counting(prompt));
        forks.run_prompt(point);
        const std::vector<RequestId> three = forks.fork(point, {11, 12, 11});
        for (const RequestId id : three) CHECK(std::ranges::equal(forks.cache->tokens(id), forks.tokens.at(id)));
        const std::int64_t kv_before = forks.cache->usage().kv_tokens;
        const PassPlan plan = forks.pass({three[0], three[1]});
        CHECK(plan.fork_copies.size() == (prompt % 4 == 0 ? 0 : 2));
        if (!in_columns(index)) {
          CHECK(plan.groups[0].copies.empty());
          CHECK(plan.groups[0].clear.empty());
        }
        CHECK(forks.cache->usage().kv_tokens == kv_before + 8);  // a block each: the others are shared
        forks.commit(plan);
        if (!in_columns(index)) CHECK(forks.cache->state(three[0]).slots.size() == 1);
        for (int i = 0; i < 10; ++i) forks.step({three[0], three[1]});
        forks.step(three);
        forks.step({point, three[0]});
        for (const RequestId id : {three[1], point, three[2], three[0]}) {
          forks.cache->finish(id);
          forks.cache->check_invariants();
        }
        CHECK(forks.cache->running_requests() == 0);
        CHECK(forks.cache->stats().requests == 1);
        CHECK(forks.cache->stats().forks == 3);
      }
}

TEST_CASE("a request waits until its forks have begun, and may end before that") {
  for (const Combination index : every_combination)
    for (const RequestEnd how : {RequestEnd::finished, RequestEnd::preempted, RequestEnd::aborted}) {
      CAPTURE(static_cast<int>(index));
      Forks forks(cache_for_forks(index));
      const RequestId point = forks.start(counting(10));
      forks.step({point});
      const std::vector<RequestId> two = forks.fork(point, {11, 12});
      CHECK(forks.cache->chunk(point, 10) == PromptChunk{});
      const std::array rows = {PassRow{.request = point, .tokens = 1}};
      CHECK_THROWS_AS(static_cast<void>(forks.cache->plan(rows)), InvalidArgument);
      forks.step({two[0]});
      CHECK(forks.cache->chunk(point, 10) == PromptChunk{});
      forks.cache->end(point, how);
      forks.cache->check_invariants();
      CHECK(forks.cache->running_requests() == 3);
      CHECK_THROWS_AS(static_cast<void>(forks.cache->tokens(point)), InvalidArgument);
      CHECK_THROWS_AS(forks.cache->finish(point), InvalidArgument);
      CHECK_THROWS_AS(static_cast<void>(forks.cache->epochs().is_stale(point)), InvalidArgument);
      const RequestId other = forks.start(counting(20, 500));
      forks.step({other, two[0]});
      forks.step({two[1], two[0]});
      CHECK(forks.cache->running_requests() == 3);
      forks.step({two[1], two[0], other});
      for (const RequestId id : {two[0], two[1], other}) forks.cache->finish(id);
      CHECK(forks.cache->running_requests() == 0);
      forks.cache->check_invariants();
      forks.cache->reset();
      CHECK(forks.cache->usage().kv_tokens == 0);
    }
}

TEST_CASE("the last fork of a request that ended takes over its memory, so that it finds room") {
  for (const Combination index : every_combination)
    for (const bool separate : {false, true})
      for (std::int32_t prompt = 1; prompt <= 94; ++prompt) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(prompt);
        RequestCacheOptions options = cache_for_forks(index);
        options.kv_tokens = options.max_request_tokens;
        if (separate && in_columns(index)) continue;
        if (separate) test::slots(options).separate_checkpoints = true;
        Forks forks(options);
        const RequestId point = forks.start(counting(prompt));
        forks.run_prompt(point);
        const std::vector<RequestId> two = forks.fork(point, {11, 12});
        forks.cache->finish(point);
        forks.cache->finish(two[0]);
        CHECK(forks.cache->running_requests() == 2);
        const std::int64_t kv_before = forks.cache->usage().kv_tokens;
        const PassPlan plan = forks.pass({two[1]});
        CHECK(forks.cache->running_requests() == 1);
        CHECK(plan.fork_copies.empty());
        CHECK(plan.rows[0].states[0].conv_source() == plan.rows[0].states[0].recurrent_source());
        if (!in_columns(index)) {
          CHECK(plan.groups[0].copies.empty());
          CHECK(plan.rows[0].states[0].conv_source() == plan.rows[0].states[0].target());
          CHECK(forks.cache->usage().kv_tokens <= kv_before + 4);
        }
        forks.commit(plan);
        // Its number and its live slot serve another request meanwhile.
        const RequestId other = forks.start(counting(3, 900));
        while (std::ssize(forks.tokens.at(two[1])) < 40) forks.step({two[1], other});
        forks.cache->finish(other);
        while (std::ssize(forks.tokens.at(two[1])) < 95) forks.step({two[1]});
        forks.cache->finish(two[1]);
        CHECK(forks.cache->running_requests() == 0);
      }
}

TEST_CASE("a fork that becomes the last one gives its own memory back first, unless a pass of it is outstanding") {
  for (const Combination index : every_combination)
    for (const std::int32_t prompt : {10, 92})
      for (const bool outstanding : {false, true}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(prompt);
        const bool is_whole = prompt % 4 == 0;
        RequestCacheOptions options = cache_for_forks(index);
        options.overlap = true;
        options.kv_tokens = options.max_request_tokens;
        Forks forks(options);
        const RequestId point = forks.start(counting(prompt));
        forks.run_prompt(point);
        const std::vector<RequestId> two = forks.fork(point, {11, 12});
        PassPlan plan = forks.pass({two[1]});
        CHECK(plan.fork_copies.size() == (is_whole ? 0 : 1));
        const std::int64_t kv_before = forks.cache->usage().kv_tokens;
        if (!outstanding) forks.cache->cancel(plan.pass);
        forks.cache->abort(two[0]);
        forks.cache->finish(point);
        if (!outstanding) {
          plan = forks.pass({two[1]});
          CHECK(plan.fork_copies.empty());
          CHECK(forks.cache->usage().kv_tokens == kv_before - (is_whole ? 0 : 4));
          CHECK(forks.cache->running_requests() == 1);
        } else {
          const PassPlan ahead = forks.cache->plan(std::array{PassRow{.request = two[1], .tokens = 1}});
          CHECK(forks.cache->running_requests() == 2);
          forks.cache->cancel(ahead.pass);
        }
        forks.commit(plan);
        CHECK(forks.cache->running_requests() == 1);
        while (std::ssize(forks.tokens.at(two[1])) < std::min(prompt + 30, 95)) forks.step({two[1]});
        forks.cache->finish(two[1]);
      }
}

TEST_CASE("forks that end before they begin free the request that they go on from") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = cache_for_forks(index);
    if (!in_columns(index)) options.eviction = EvictionOrder::hix;  // it must hear of no end
    Forks forks(options);
    const RequestId point = forks.start(counting(10));
    forks.step({point});
    std::vector<RequestId> two = forks.fork(point, {11, 12});
    static_cast<void>(forks.pass({two[1]}));  // it has memory of its own, and its pass does not run
    forks.cache->finish(two[0]);
    CHECK(forks.cache->chunk(point, 1) == PromptChunk{});
    forks.cache->finish(two[1]);
    forks.cache->check_invariants();
    forks.step({point});
    two = forks.fork(point, {11, 12});
    forks.cache->finish(point);
    forks.cache->abort(two[0]);
    CHECK(forks.cache->running_requests() == 2);
    forks.cache->abort(two[1]);
    CHECK(forks.cache->running_requests() == 0);
    forks.cache->check_invariants();
  }
}

TEST_CASE("a pass of a fork that does not run is planned again as before") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Forks forks(cache_for_forks(index));
    const RequestId point = forks.start(counting(10));
    forks.step({point});
    const std::vector<RequestId> two = forks.fork(point, {11, 12});
    for (int i = 0; i < 3; ++i) {
      const PassPlan plan = forks.cache->plan(std::array{PassRow{.request = two[0], .tokens = 1}});
      CHECK(plan.fork_copies.size() == 1);
      forks.cache->cancel(plan.pass);
      forks.cache->check_invariants();
    }
    forks.step(two);
    forks.step(two);
  }
}

TEST_CASE("beams fork what goes on and end what was forked") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = cache_for_forks(index);
    options.max_requests = 12;
    Forks forks(options);
    const RequestId prompt = forks.start(counting(9));
    forks.step({prompt}, std::nullopt);
    std::vector<RequestId> beams = forks.fork(prompt, {1, 2, 3, 4});
    forks.cache->finish(prompt);
    test::Random random(5);
    for (int step = 0; step < 40; ++step) {
      forks.step(beams);
      std::vector<RequestId> next;
      while (next.size() < 4) {
        const auto beam = static_cast<std::size_t>(random.between(0, 3));
        next.push_back(forks.fork(beams[beam], {step * 10 + random.between32(0, 9)}).front());
      }
      for (const RequestId beam : beams) forks.cache->abort(beam);
      forks.cache->check_invariants();
      beams = next;
    }
    CHECK(forks.cache->running_requests() <= 8);
    for (const RequestId beam : beams) forks.cache->finish(beam);
    CHECK(forks.cache->running_requests() == 0);
  }
}

TEST_CASE("a fork with a prompt of its own leaves checkpoints that later prompts find") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Forks forks(cache_for_forks(index));
    const RequestId point = forks.start(counting(10));
    forks.step({point});
    Tokens own = counting(50, 700);
    std::array<RequestId, 1> fork;
    REQUIRE(forks.cache->fork(point, own, fork));
    Tokens all = counting(10);
    all.insert(all.end(), own.begin(), own.end());
    std::int64_t computed = 10;
    while (computed < std::ssize(all)) {
      const std::int64_t chunk = forks.cache->chunk(fork[0], std::ssize(all) - computed).tokens;
      computed += chunk;
      forks.tokens[fork[0]].assign(all.begin(), all.begin() + computed);
      forks.step({fork[0]}, computed == std::ssize(all) ? std::optional<Token>(7) : std::nullopt);
    }
    forks.cache->finish(fork[0]);
    all.push_back(7);
    all.push_back(8);
    const auto later = forks.cache->start({.tokens = all});
    REQUIRE(later);
    CHECK(later->reused_tokens == (in_columns(index) ? 48 : index == Combination::tree_slots ? 60 : 56));
    const HitPlaces places = forks.cache->places(later->request);
    forks.world.check(places, Tokens(all.begin(), all.begin() + later->reused_tokens), 0);
  }
}

TEST_CASE("a fork that takes over leaves alone a checkpoint that another request holds") {
  RequestCacheOptions options = cache_for_forks(Combination::tree_slots);
  test::slots(options).placement = CheckpointPlacement::every;
  test::slots(options).scan_alignment_tokens = 4;
  Forks forks(options);
  const RequestId point = forks.start(counting(6));
  forks.run_prompt(point);
  while (forks.cache->computed(point) < 8) forks.step({point});
  Tokens with_checkpoint = forks.tokens.at(point);
  with_checkpoint.resize(8);
  const Tokens own = counting(14, 700);
  std::array<RequestId, 1> fork;
  REQUIRE(forks.cache->fork(point, own, fork));
  forks.cache->finish(point);
  forks.tokens[fork[0]] = with_checkpoint;
  forks.tokens[fork[0]].insert(forks.tokens[fork[0]].end(), own.begin(), own.end());
  forks.step({fork[0]});
  with_checkpoint.push_back(900);
  const RequestId holder = forks.start(with_checkpoint);
  for (Token first = 1000; first <= 1500; first += 100) {
    const RequestId other = forks.start(counting(31, first));
    forks.run_prompt(other);
    if (first < 1500) forks.cache->finish(other);  // the last one takes the last free slot
  }
  while (forks.cache->computed(fork[0]) < 24) forks.step({fork[0]});
  forks.step({holder});
}

TEST_CASE("a fork has the weights, the tenant and the hint of its request") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Forks forks(cache_for_forks(index));
    const RequestId point = forks.start(counting(24));
    forks.step({point});
    const std::vector<RequestId> two = forks.fork(point, {11, 12});
    static_cast<void>(forks.cache->epochs().advance());
    for (const RequestId id : two) CHECK(forks.cache->epochs().is_stale(id));
    forks.step(two);
    const std::vector<RequestId> of_old = forks.fork(point, {13});
    CHECK(forks.cache->epochs().is_stale(of_old[0]));
    for (int i = 0; i < 30; ++i) forks.step({two[0], two[1], of_old[0]});
    for (const RequestId id : {point, two[0], two[1], of_old[0]}) forks.cache->finish(id);
    forks.cache->check_invariants();
    const auto later = forks.cache->start({.tokens = counting(40)});
    CHECK(later->reused_tokens == 0);
  }
}

TEST_CASE("the hint at the end of a request counts when its forks have begun") {
  for (const Combination index : every_combination)
    for (const bool closes : {false, true}) {
      CAPTURE(static_cast<int>(index));
      RequestCacheOptions options = cache_for_forks(index);
      options.sessions.remembered = 8;
      Forks forks(options);
      const ReuseHint hint{.session = 5};
      const RequestId point = forks.cache->start({.tokens = counting(10), .hint = hint})->request;
      forks.tokens[point] = counting(10);
      forks.step({point});
      const std::vector<RequestId> two = forks.fork(point, {11, 12});
      forks.cache->finish(point, {.last_turn = closes, .session = 5});
      CHECK(forks.cache->sessions()->usage(5).is_open);
      forks.step(two);
      CHECK(forks.cache->sessions()->usage(5).is_open == !closes);
      for (const RequestId id : two) forks.cache->finish(id);
      forks.cache->check_invariants();
    }
}

TEST_CASE("forks that cannot be are refused, and change nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Forks forks(cache_for_forks(index));
    RequestCache& cache = *forks.cache;
    const auto refused = [&](RequestId request, const Tokens& tokens, std::size_t count) -> std::string {
      std::vector<RequestId> out(count, RequestId{77});
      const std::int32_t running = cache.running_requests();
      try {
        static_cast<void>(cache.fork(request, tokens, out));
      } catch (const std::logic_error& error) {
        CHECK(cache.running_requests() == running);
        CHECK(std::ranges::count(out, RequestId{77}) == std::ssize(out));
        cache.check_invariants();
        return error.what();
      }
      return "";
    };
    const auto has = [](const std::string& text, const std::string& part) {
      return text.find(part) != std::string::npos;
    };
    const RequestId point = forks.start(counting(12));
    CHECK(has(refused(point, {1}, 1), "has not computed its prompt"));
    CHECK(has(refused(RequestId{5}, {1}, 1), "is not running"));
    const PassPlan plan = forks.pass({point});
    CHECK(has(refused(point, {1}, 1), "has not computed its prompt"));
    forks.commit(plan);
    CHECK(has(refused(point, {1}, 0), "forks = 0"));
    CHECK(has(refused(point, {}, 2), "tokens = 0"));
    CHECK(has(refused(point, {1, 2, 3}, 2), "tokens = 3"));
    CHECK(has(refused(point, Tokens(85, 1), 1), "longer than max_request_tokens"));
    const PassPlan under_way = forks.pass({point});
    CHECK(has(refused(point, {1}, 1), "is in an outstanding pass"));
    forks.commit(under_way);
    const std::vector<RequestId> fork = forks.fork(point, {1});
    CHECK(has(refused(fork[0], {1}, 1), "is a fork that has not begun"));
    CHECK_THROWS_AS(static_cast<void>(cache.refresh(fork[0])), InvalidState);
    CHECK_THROWS_AS(static_cast<void>(cache.places(fork[0])), InvalidState);
    std::array<RequestId, 7> many;
    CHECK_FALSE(cache.fork(point, Tokens(7, 1), many));
    CHECK(cache.running_requests() == 2);
    CHECK(cache.fork(point, Tokens(6, 1), std::span(many).first(6)));
    CHECK(cache.running_requests() == 8);
    cache.check_invariants();
  }
}

TEST_CASE("a fork that finds no slot has no room, and its pass runs when there is one") {
  RequestCacheOptions options = cache_for_forks(Combination::tree_slots);
  test::slots(options).checkpoints = 0;
  options.max_requests = 3;
  Forks forks(options);
  const RequestId point = forks.start(counting(10));
  forks.step({point});
  const RequestId other = forks.start(counting(10, 300));
  const std::vector<RequestId> fork = forks.fork(point, {11});
  forks.step({fork[0], other});
  CHECK(forks.cache->state(fork[0]).slots.size() == 1);
}

TEST_CASE("whatever an engine forks, every pass reads the state and the KV of its own tokens") {
  enum class Kind : std::uint8_t { device, tiers, arena };
  for (const Combination index : every_combination)
    for (const Kind kind : {Kind::device, Kind::tiers, Kind::arena}) {
      if (kind == Kind::arena && in_columns(index)) continue;
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(kind));
      test::RandomRuns runs;
      test::for_each_seed(120, [&](test::Random& random, std::uint64_t) {
        RequestCacheOptions options = test::random_options(random, index);
        options.max_requests = random.between32(2, 8);
        options.kv_tokens += random.between(0, 400);
        options.scrub = random.chance(20);
        if (in_columns(index))
          for (StateGroup& group : test::columns(options).groups) group.blocks += random.between32(0, 40);
        if (kind == Kind::arena) test::draw_arena(random, options);
        if (kind == Kind::tiers || (kind == Kind::arena && random.chance(30)))
          options.tiers = test::random_tiers(random, options);
        test::RandomEngine engine(random, options);
        engine.habits = {.changes_weights = random.chance(20), .crowds = random.chance(20), .forks = true};
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 120) continue;
      MESSAGE(runs.forks << " forks, " << runs.taken_over << " took over, " << runs.forked_ended
                         << " requests ended before them, " << runs.hits << " hits");
      CHECK(runs.forks > 450);
      CHECK(runs.taken_over > 100);
      CHECK(runs.hits > 60);
    }
}
