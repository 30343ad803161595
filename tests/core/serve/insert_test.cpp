// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve_alone.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

namespace {

Tokens first_of(const Tokens& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

/// A cache, its memory, and an engine that computes prompts without passes.
struct Engine {
  explicit Engine(const RequestCacheOptions& options) : cache(make_request_cache(options)), world(options) {}

  RequestId start(const Tokens& prompt) { return cache->start({.tokens = prompt})->request; }
  /// Copies as the cache asks. Returns the number of checkpoints without room; none if the tokens have no room.
  std::optional<std::int32_t> insert(RequestId request, const Tokens& tokens) {
    const auto inserted = cache->insert(request, std::ssize(tokens));
    cache->check_invariants();
    if (!inserted) return std::nullopt;
    copies += std::ssize(inserted->plan.groups[0].copies);
    const KvRow& row = inserted->plan.rows[0].kv;
    kv.clear();
    for (std::int64_t at = 0; at < std::ssize(tokens); ++at) kv.push_back(row.at(at));
    world.before(inserted->plan);
    world.insert(inserted->plan.rows[0], tokens);
    world.after(inserted->commit);
    return inserted->commit.dropped_states;
  }
  void check_places(RequestId request, const Tokens& tokens) {
    for (std::size_t g = 0; g < group_count(cache->options()); ++g) world.check(cache->places(request, g), tokens, g);
  }

  std::unique_ptr<RequestCache> cache;
  StateWorld world;
  std::int64_t copies = 0;  ///< of plans
  std::vector<KvIndex> kv;  ///< of the tokens of the last insert
};

}  // namespace

TEST_CASE("an inserted prefix is found, lies at its places, and is read by passes") {
  for (const auto& [index, mode] : {std::pair(Combination::hash_slots, AlignMode::align),
                                    {Combination::tree_slots, AlignMode::align},
                                    {Combination::hash_columns, AlignMode::align},
                                    {Combination::hash_columns, AlignMode::all},
                                    {Combination::tree_columns, AlignMode::align},
                                    {Combination::tree_columns, AlignMode::all}}) {
    CAPTURE(static_cast<int>(index));
    CAPTURE(static_cast<int>(mode));
    RequestCacheOptions options = small_cache(index);
    if (in_columns(index)) columns(options).mode = mode;
    Engine engine(options);
    const Tokens prompt = counting(60);
    const RequestId first = engine.start(prompt);
    CHECK(engine.cache->places(first).tokens == 0);
    CHECK(engine.insert(first, first_of(prompt, 24)) == 0);
    CHECK(engine.cache->computed(first) == 24);
    engine.cache->abort(first);

    const RequestId again = engine.start(prompt);
    CHECK(engine.cache->computed(again) == 24);
    engine.check_places(again, first_of(prompt, 24));
    // Behind the hit, too; its checkpoint is not restored for nothing.
    CHECK(engine.insert(again, first_of(prompt, 48)) == 0);
    CHECK(engine.copies == 0);
    CHECK_THROWS_WITH_AS(static_cast<void>(engine.cache->places(again)), doctest::Contains("has committed a pass"),
                         InvalidState);
    engine.cache->finish(again);

    const StartedRequest served = serve_alone(*engine.cache, engine.world, prompt, 3);
    CHECK(served.reused_tokens == 48);
  }
}

TEST_CASE("a request runs on behind an inserted prefix, wherever that ends") {
  for (const Combination index : every_combination)
    for (const std::int64_t inserted : {1, 5, 12, 23, 24, 29}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(inserted);
      Engine engine(small_cache(index));
      const Tokens prompt = counting(30);
      const RequestId request = engine.start(prompt);
      REQUIRE(engine.insert(request, first_of(prompt, inserted)));
      const auto rest = static_cast<std::int32_t>(engine.cache->chunk(request, 30).tokens);
      const PassRow row{.request = request, .tokens = rest};
      const PassPlan plan = engine.cache->plan({&row, 1});
      engine.world.before(plan);
      engine.world.run(0, plan.rows[0], first_of(prompt, inserted),
                       {prompt.begin() + inserted, prompt.begin() + inserted + rest});
    }
}

TEST_CASE("whole blocks that are inserted are a checkpoint, wherever placements put theirs") {
  for (const Combination index : slot_combinations)
    for (const auto placement : {CheckpointPlacement::passes, CheckpointPlacement::last, CheckpointPlacement::branch,
                                 CheckpointPlacement::rungs, CheckpointPlacement::every})
      for (const bool separate : {false, true}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(placement));
        RequestCacheOptions options = small_cache(index);
        slots(options).placement = placement;
        slots(options).separate_checkpoints = separate;
        Engine engine(options);
        const Tokens prompt = counting(50);
        const RequestId request = engine.start(prompt);
        CHECK(engine.insert(request, first_of(prompt, 20)) == 0);
        const RequestId other = engine.start(prompt);
        CHECK(engine.cache->computed(other) == 20);
        engine.check_places(other, first_of(prompt, 20));
      }
}

TEST_CASE("a prefix that two requests insert is cached once, and the second one's other copies do no harm") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Engine engine(small_cache(index));
    const Tokens prompt = counting(60);
    const RequestId one = engine.start(prompt);
    const RequestId two = engine.start(prompt);
    CHECK(engine.insert(one, first_of(prompt, 24)) == 0);
    CHECK(engine.insert(two, first_of(prompt, 48)) == 0);
    // Blocks that other requests may read are not written again.
    for (std::int64_t at = 0; at < 24; ++at)
      CHECK(engine.kv[static_cast<std::size_t>(at)] != engine.cache->kv(one).at(at));
    engine.cache->finish(one);
    engine.cache->finish(two);
    CHECK(engine.cache->usage().kv_tokens == 48);
    CHECK(serve_alone(*engine.cache, engine.world, prompt, 2).reused_tokens == 48);
  }
}

TEST_CASE("KV that is cached behind the hit is named again by hash in slots, and read by the request otherwise") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    if (!in_columns(index)) slots(options).placement = CheckpointPlacement::last;
    Engine engine(options);
    const Tokens prompt = counting(60);
    const RequestId one = engine.start(prompt);
    CHECK(engine.insert(one, first_of(prompt, 48)) == 0);
    // Shares 24 tokens of KV with it, and no state.
    Tokens other = first_of(prompt, 24);
    for (Token token = 900; token < 930; ++token) other.push_back(token);
    const RequestId two = engine.start(other);
    CHECK(engine.cache->computed(two) == 0);
    CHECK(engine.insert(two, first_of(other, 48)) == 0);
    const std::vector<KvIndex> named = engine.kv;
    for (std::int64_t at = 0; at < 24; ++at) {
      CHECK(engine.cache->kv(two).at(at) == engine.cache->kv(one).at(at));
      CHECK((named[static_cast<std::size_t>(at)] == engine.cache->kv(one).at(at)) ==
            (index == Combination::hash_slots));
    }
    CHECK(engine.cache->usage().kv_tokens == 48 + 24);
    engine.cache->finish(one);
    engine.cache->finish(two);
    CHECK(serve_alone(*engine.cache, engine.world, other, 2).reused_tokens == 48);
  }
}

TEST_CASE("block tables that keep no state take inserts, and find none of them again") {
  RequestCacheOptions options = small_cache(Combination::hash_columns);
  columns(options).mode = AlignMode::none;
  Engine engine(options);
  const Tokens prompt = counting(60);
  const RequestId request = engine.start(prompt);
  CHECK(engine.insert(request, first_of(prompt, 24)) == 0);
  CHECK(engine.cache->computed(request) == 24);
  engine.cache->finish(request);
  CHECK(serve_alone(*engine.cache, engine.world, prompt, 2).reused_tokens == 0);
}

TEST_CASE("a request whose whole prompt was inserted has no token to feed, and ends") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Engine engine(small_cache(index));
    const Tokens prompt = counting(48);
    const RequestId request = engine.start(prompt);
    CHECK(engine.insert(request, prompt) == 0);
    const PassRow row{.request = request, .tokens = 1};
    CHECK_THROWS_WITH_AS(static_cast<void>(engine.cache->plan({&row, 1})), doctest::Contains("has no token to feed"),
                         InvalidState);
    engine.cache->finish(request);
    CHECK(serve_alone(*engine.cache, engine.world, counting(60), 2).reused_tokens == 48);
  }
}

TEST_CASE("an insert without room changes nothing, and one without room for its checkpoint says so") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    options.kv_tokens = 96;
    if (!in_columns(index)) slots(options).checkpoints = 0;
    Engine engine(options);
    const Tokens prompt = counting(90);
    const RequestId request = engine.start(prompt);
    const auto dropped = engine.insert(request, first_of(prompt, 72));
    CHECK(dropped == (in_columns(index) ? 0 : 1));
    const Tokens other = counting(90, 500);
    const RequestId late = engine.start(other);
    CHECK_FALSE(engine.insert(late, first_of(other, 48)));
    CHECK(engine.cache->computed(late) == 0);
    CHECK(engine.insert(late, first_of(other, 24)));
  }
}

TEST_CASE("a bad insert is refused by name, and changes nothing") {
  Engine engine(small_cache(Combination::tree_slots, 0, true));
  RequestCache& cache = *engine.cache;
  const Tokens prompt = counting(30);
  const RequestId request = engine.start(prompt);
  const auto refused = [&](std::int64_t tokens, const char* text) {
    CHECK_THROWS_WITH_AS(static_cast<void>(cache.insert(request, tokens)), doctest::Contains(text), InvalidArgument);
    cache.check_invariants();
  };
  refused(0, "tokens = 0");
  refused(31, "tokens = 31");
  refused(-1, "tokens = -1");
  REQUIRE(engine.insert(request, first_of(prompt, 8)));
  refused(8, "must be more than are computed");
  CHECK_THROWS_WITH_AS(static_cast<void>(cache.insert(RequestId{3}, 1)), doctest::Contains("is not running"),
                       InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(cache.places(RequestId{3})), InvalidArgument);
  const RequestId other = engine.start(prompt);
  CHECK_THROWS_WITH_AS(static_cast<void>(cache.places(other, 1)), doctest::Contains("group = 1"), InvalidArgument);
  const PassRow row{.request = request, .tokens = 4};
  const PassPlan plan = cache.plan({&row, 1});
  CHECK_THROWS_WITH_AS(static_cast<void>(cache.insert(other, 12)), doctest::Contains("outstanding passes"),
                       InvalidState);
  cache.cancel(plan.pass);
  CHECK(engine.insert(other, first_of(prompt, 12)) == 0);
}

TEST_CASE("with tiers, victims of an insert are stored before its copies, and requests that wait cannot insert") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    const StartedRequest waits = *server.start({.tokens = server.prompt});
    REQUIRE(waits.load);
    CHECK_THROWS_WITH_AS(static_cast<void>(server.insert(waits.request, 33)), doctest::Contains("waits for a load"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(static_cast<void>(server.cache->places(waits.request)), doctest::Contains("waits for a load"),
                         InvalidState);
    server.move_all();
    const Tokens hit = first_of(server.prompt, server.cache->computed(waits.request));
    REQUIRE(hit.size() == 32);
    server.world.check(server.cache->places(waits.request), hit, 0);
    server.cache->abort(waits.request);
    server.move_all();

    const Tokens prompt = prompt_of(34, 5000);
    const StartedRequest started = *server.start({.tokens = prompt});
    server.move_all();
    const auto inserted = server.insert(started.request, 32);
    REQUIRE(inserted);
    const auto results = server.carry_out(TransferStatus::done);
    server.world.before(inserted->plan);
    server.world.insert(inserted->plan.rows[0], first_of(prompt, 32));
    server.world.after(inserted->commit);
    server.settle(results);
    server.move_all();
    server.cache->finish(started.request);
    server.move_all();
    push_down(server);
    const StartedRequest again = server.serve(prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
  }
}
