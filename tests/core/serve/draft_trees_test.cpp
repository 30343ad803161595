// SPDX-License-Identifier: Apache-2.0
// Drafts that are trees: the cache keeps any path of them.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

namespace {

constexpr std::array in_slots = {Combination::hash_slots, Combination::tree_slots};

/// A request whose prompt of 6 tokens is computed.
class Decoding {
 public:
  explicit Decoding(Combination index)
      : cache(make_request_cache(small_cache(index, 4))), world(small_cache(index, 4)) {
    request = cache->start({.tokens = tokens})->request;
    const PassPlan plan = cache->plan(std::array{PassRow{.request = request, .tokens = 6}});
    world.before(plan);
    world.run(0, plan.rows[0], {}, tokens);
    commit(plan, 1, Tokens{7}, {});
  }
  PassPlan pass(const Tokens& drafts, std::span<const std::int32_t> parents) {
    const auto count = static_cast<std::int32_t>(drafts.size());
    const PassPlan plan =
        cache->plan(std::array{PassRow{.request = request, .tokens = 1 + count, .drafts = count}}, parents);
    world.before(plan);
    Tokens fed = {tokens.back()};
    fed.insert(fed.end(), drafts.begin(), drafts.end());
    world.run_tree(0, plan.rows[0], {tokens.begin(), tokens.end() - 1}, fed, parents);
    return plan;
  }
  PassCommit commit(const PassPlan& plan, std::int32_t count, const Tokens& sampled, std::vector<std::int32_t> steps) {
    const PassCommit commit = cache->commit(plan.pass, {&count, 1}, sampled, steps);
    world.after(commit);
    cache->check_invariants();
    tokens.insert(tokens.end(), sampled.begin(), sampled.end());
    CHECK(world.read(cache->state(request), 0) == Tokens(tokens.begin(), tokens.end() - 1));
    return commit;
  }

  std::unique_ptr<RequestCache> cache;
  StateWorld world;
  Tokens tokens = counting(6);
  RequestId request;
};

}  // namespace

TEST_CASE("a commit keeps any path of a tree of drafts: the state of its last step, and the KV of all") {
  // 0 ─► 1 ─► 3
  //  └─► 2 ─► 4
  constexpr std::array parents = {0, 0, 1, 2};
  const Tokens drafts = {51, 52, 53, 54};
  for (const Combination index : in_slots) {
    CAPTURE(static_cast<int>(index));
    struct Path {
      std::int32_t step;
      Tokens sampled;
      std::size_t moves;
    };
    for (const Path& path : {Path{0, {9}, 0}, Path{1, {51, 9}, 0}, Path{2, {52, 9}, 1}, Path{3, {51, 53, 9}, 1},
                             Path{4, {52, 54, 9}, 2}}) {
      CAPTURE(path.step);
      Decoding decoding(index);
      const PassPlan plan = decoding.pass(drafts, parents);
      const KvRow kv = plan.rows[0].kv;
      const std::int64_t start = plan.rows[0].start;
      const KvIndex first = kv.at(start + path.step);
      const PassCommit commit =
          decoding.commit(plan, static_cast<std::int32_t>(path.sampled.size()), path.sampled, {path.step});
      CHECK(commit.groups[0].steps[0].live_step == path.step);
      REQUIRE(commit.kv_moves.size() == path.moves);
      if (path.moves > 0) CHECK(commit.kv_moves.back().src == first);
      // A state at a multiple of 8 tokens is kept, wherever it lies in the tree.
      const bool passes = std::ssize(decoding.tokens) - 1 >= 8;
      CHECK(commit.groups[0].steps[0].kept_step == (passes ? (path.step > 2 ? path.step - 2 : path.step) : -1));
      static_cast<void>(decoding.commit(decoding.pass({61}, std::array{0}), 1, {8}, {0}));  // reads the KV of all
      decoding.cache->finish(decoding.request);
    }
  }
}

TEST_CASE("trees of drafts that cannot be are refused, and change nothing") {
  const auto text = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const auto has = [](const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; };
  for (const Combination index : in_slots) {
    Decoding decoding(index);
    RequestCache& cache = *decoding.cache;
    const std::array rows = {PassRow{.request = decoding.request, .tokens = 3, .drafts = 2}};
    const auto refused = [&](std::vector<std::int32_t> parents) {
      return text([&] { static_cast<void>(cache.plan(rows, parents)); });
    };
    CHECK(has(refused({0}), "parents = 1"));
    CHECK(has(refused({0, 0, 0}), "parents = 3"));
    CHECK(has(refused({0, 2}), "parents = 2"));
    CHECK(has(refused({-1, 0}), "parents = -1"));
    constexpr std::array parents = {0, 0, 1};
    const PassPlan plan = decoding.pass({51, 52, 53}, parents);
    const auto refused_steps = [&](std::int32_t count, const Tokens& sampled, std::vector<std::int32_t> steps) {
      return text([&] { static_cast<void>(cache.commit(plan.pass, {&count, 1}, sampled, steps)); });
    };
    CHECK(has(refused_steps(2, {51, 9}, {}), "steps = 0"));
    CHECK(has(refused_steps(2, {51, 9}, {1, 1}), "steps = 2"));
    CHECK(has(refused_steps(2, {51, 9}, {4}), "steps = 4"));
    CHECK(has(refused_steps(2, {51, 9}, {3}), "steps = 3"));  // two drafts lead to it
    CHECK(has(refused_steps(2, {51, 9}, {-1}), "steps = -1"));
    CHECK(has(refused_steps(2, {51, 9}, {0}), "steps = 0"));
    CHECK(has(refused_steps(3, {51, 52, 9}, {2}), "steps = 2"));
    static_cast<void>(decoding.commit(plan, 2, {52, 9}, {2}));
  }
  const auto cache = make_request_cache(small_cache(Combination::hash_columns, 2));
  const RequestId id = cache->start({.tokens = counting(3)})->request;
  const PassPlan prompt = cache->plan(std::array{PassRow{.request = id, .tokens = 3}});
  static_cast<void>(cache->commit(prompt.pass, std::array{1}, std::array<Token, 1>{7}));
  const std::array rows = {PassRow{.request = id, .tokens = 2, .drafts = 1}};
  CHECK(has(text([&] { static_cast<void>(cache->plan(rows, std::array{0})); }), "drafts are chains in columns"));
}

TEST_CASE("whatever trees an engine drafts, every pass reads the state and the KV of its own tokens") {
  for (const Combination index : in_slots)
    for (const bool tiers : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers);
      test::RandomRuns runs;
      test::for_each_seed(200, [&](test::Random& random, std::uint64_t) {
        RequestCacheOptions options = test::random_options(random, index);
        options.drafts = random.between32(1, 6);
        options.kv_tokens += random.between(0, 200);
        options.scrub = random.chance(20);
        if (random.chance(20)) test::draw_arena(random, options);
        if (tiers) options.tiers = test::random_tiers(random, options);
        test::RandomEngine engine(random, options);
        engine.habits = {.changes_weights = random.chance(20), .forks = random.chance(50), .trees = true};
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 200) continue;
      MESSAGE(runs.kv_moves << " moves of KV, " << runs.hits << " hits");
      CHECK(runs.kv_moves > 1000);
    }
}
