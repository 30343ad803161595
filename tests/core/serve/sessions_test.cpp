// SPDX-License-Identifier: Apache-2.0
// Sessions: contents of closed ones go first, and nothing else changes.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "checked_shares.hpp"
#include "combination.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

using SessionPrompt = std::vector<Token>;

constexpr std::int64_t session_prompt_bytes = 60 + 40;  ///< of KV and the state at its end
constexpr MemoryCost session_cost{.state_bytes = 40, .kv_bytes_per_token = 1};

/// Room for `prompts` prompts with a state each.
RequestCacheOptions session_cache(Combination index, std::int32_t prompts) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 64,
                              .block_size_tokens = 4,
                              .kv_tokens = std::int64_t{prompts} * 64,
                              .unchecked_layout = true,
                              .memory = session_cost,
                              .hash = BlockHashKind::xxh3_128,
                              .sessions = {.remembered = 16}};
  if (in_columns(index))
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = 20, .blocks = prompts + 4}}};
  else
    options.layout = SlotLayout{.checkpoints = prompts, .placement = CheckpointPlacement::last};
  return options;
}

SessionPrompt session_prompt(Token first, std::int64_t count = 61) {
  SessionPrompt tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<Token>(i));
  return tokens;
}

/// Serves a prompt alone; answers the tokens that it reused.
std::int64_t serve_session(RequestCache& cache, const SessionPrompt& prompt, std::uint64_t session, double& now_s,
                           const ReuseHint& last = {}, const char* salt = nullptr) {
  Namespace name_space;
  if (salt != nullptr) name_space.salt = salt;
  const auto started =
      cache.start({.tokens = prompt, .name_space = name_space, .hint = {.session = session}, .now_s = now_s += 1});
  REQUIRE(started);
  finish_prompt(cache, started->request, std::ssize(prompt), last);
  return started->reused_tokens;
}

}  // namespace

TEST_CASE("contents of a closed session go before all others, whatever the order") {
  for (const Combination index : every_combination)
    for (const EvictionOrder order : orders_of(index)) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(name(order));
      RequestCacheOptions options = session_cache(index, 8);
      options.eviction = order;
      const auto cache = make_request_cache(options);
      CacheSessions& sessions = *cache->sessions();
      double now_s = 0;
      for (unsigned i = 0; i < 4; ++i) serve_session(*cache, session_prompt(1000 * static_cast<int>(i)), 1 + i, now_s);
      for (int i = 4; i < 8; ++i) serve_session(*cache, session_prompt(1000 * i), 5, now_s);
      CHECK(sessions.usage(3).kv_tokens == 60);
      CHECK(sessions.usage(3).states == 1);
      const std::int64_t each = sessions.usage(3).bytes;
      CHECK(sessions.close(5));  // the one that was used last
      CHECK_FALSE(sessions.close(5));
      CHECK(sessions.closed_sessions() == 1);
      CHECK_FALSE(sessions.usage(5).is_open);
      // Nothing goes while there is room.
      const std::int64_t before = sessions.usage(5).bytes;
      CHECK(before >= 3 * each);
      cache->check_invariants();
      for (int i = 10; i < 13; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
      CHECK(sessions.usage(5).bytes <= before - 2 * 60);
      for (unsigned session = 1; session < 5; ++session) CHECK(sessions.usage(session).bytes == each);
      for (unsigned i = 0; i < 4; ++i)
        CHECK(serve_session(*cache, session_prompt(1000 * static_cast<int>(i)), 1 + i, now_s) == 60);
    }
}

TEST_CASE("where states alone are scarce, those of a closed session go first") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = session_cache(index, 4);
    options.kv_tokens = 40 * 64;
    const auto cache = make_request_cache(options);
    CacheSessions& sessions = *cache->sessions();
    double now_s = 0;
    for (unsigned i = 0; i < 4; ++i) serve_session(*cache, session_prompt(1000 * static_cast<int>(i)), 1 + i, now_s);
    CHECK(sessions.close(4));
    for (int i = 10; i < 20 && sessions.usage(4).states > 0; ++i) {
      serve_session(*cache, session_prompt(1000 * i), 0, now_s);
      for (unsigned session = 1; session < 4; ++session) CHECK(sessions.usage(session).states == 1);
    }
    CHECK(sessions.usage(4).states == 0);
    for (unsigned i = 0; i < 3; ++i)
      CHECK(serve_session(*cache, session_prompt(1000 * static_cast<int>(i)), 1 + i, now_s) == 60);
  }
}

TEST_CASE("the live slot of a request does not cost the closed session's state that it continues from") {
  RequestCacheOptions options = session_cache(Combination::tree_slots, 8);
  slots(options).checkpoints = 2;
  const auto cache = make_request_cache(options);
  double now_s = 0;
  serve_session(*cache, session_prompt(0), 1, now_s);
  serve_session(*cache, session_prompt(1000), 0, now_s);
  const SessionPrompt running = session_prompt(2000, 63);
  const auto other = cache->start({.tokens = running, .now_s = now_s});
  REQUIRE(other);
  const PassRow row{.request = other->request, .tokens = 60};
  constexpr std::int32_t none = 0;
  static_cast<void>(cache->commit(cache->plan({&row, 1}).pass, {&none, 1}, {}));
  CHECK(cache->sessions()->close(1));
  const SessionPrompt again = session_prompt(0);
  const auto started = cache->start({.tokens = again, .now_s = now_s});
  REQUIRE(started);
  CHECK(started->reused_tokens == 60);
  cache->check_invariants();
}

TEST_CASE("a session that speaks again is open, and its contents compete as before") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(session_cache(index, 8));
    CacheSessions& sessions = *cache->sessions();
    double now_s = 0;
    serve_session(*cache, session_prompt(9000), 0, now_s);  // goes next where a demoted leaf is not enough
    serve_session(*cache, session_prompt(0), 1, now_s);
    serve_session(*cache, session_prompt(500), 1, now_s);
    serve_session(*cache, session_prompt(1000), 2, now_s);
    serve_session(*cache, session_prompt(2000), 3, now_s);
    CHECK(sessions.close(1));
    CHECK(sessions.close(2));
    // Its other contents stay as well.
    CHECK(serve_session(*cache, session_prompt(500), 1, now_s) == 60);
    CHECK(sessions.usage(1).is_open);
    for (int i = 10; i < 14; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
    CHECK(sessions.usage(2).bytes < session_prompt_bytes);
    CHECK(sessions.usage(1).bytes == 2 * session_prompt_bytes);
    CHECK(sessions.usage(3).bytes == session_prompt_bytes);
    CHECK(serve_session(*cache, session_prompt(0), 1, now_s) == 60);
  }
}

TEST_CASE("what other requests share with a closed session is not demoted") {
  for (const Combination index : every_combination)
    for (const std::uint64_t other : {0u, 2u}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(other);
      const auto cache = make_request_cache(session_cache(index, 8));
      CacheSessions& sessions = *cache->sessions();
      double now_s = 0;
      for (int i = 3; i < 6; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
      SessionPrompt own = session_prompt(0, 40), theirs = own;
      serve_session(*cache, session_prompt(0, 41), 1, now_s);
      own.resize(61, 7);
      theirs.resize(61, 8);
      serve_session(*cache, own, 1, now_s);
      CHECK(serve_session(*cache, theirs, other, now_s) == 40);
      CHECK(sessions.usage(1).kv_tokens == 20);
      CHECK(sessions.usage(1).states == 1);
      CHECK(sessions.close(1));
      for (int i = 10; i < 20 && sessions.usage(1).kv_tokens > 0; ++i)
        serve_session(*cache, session_prompt(1000 * i), 0, now_s);
      CHECK(sessions.usage(1).kv_tokens == 0);
      CHECK(serve_session(*cache, theirs, other, now_s) == 60);
      CHECK(serve_session(*cache, own, 1, now_s) == 40);
    }
}

TEST_CASE("a request whose last turn it was closes its session with its end") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(session_cache(index, 8));
    CacheSessions& sessions = *cache->sessions();
    double now_s = 0;
    serve_session(*cache, session_prompt(0), 1, now_s, {.last_turn = true});
    CHECK_FALSE(sessions.usage(1).is_open);
    CHECK(sessions.usage(1).bytes == session_prompt_bytes);
    serve_session(*cache, session_prompt(1000), 2, now_s, {.tool_call_pending = true});
    CHECK(sessions.usage(2).is_open);
    CHECK(sessions.closed_sessions() == 1);
    serve_session(*cache, session_prompt(2000), 0, now_s, {.last_turn = true});
    CHECK(sessions.closed_sessions() == 1);
  }
}

TEST_CASE("a session that is idle for too long is closed, and one that costs too much is demoted") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = session_cache(index, 8);
    options.sessions.idle_s = 10;
    auto cache = make_request_cache(options);
    double now_s = 0;
    serve_session(*cache, session_prompt(0), 1, now_s);
    now_s = 4;
    serve_session(*cache, session_prompt(1000), 2, now_s);
    now_s = 9;
    serve_session(*cache, session_prompt(2000), 0, now_s);
    CHECK(cache->sessions()->usage(1).is_open);
    serve_session(*cache, session_prompt(2000), 0, now_s);  // at 11
    CHECK_FALSE(cache->sessions()->usage(1).is_open);
    CHECK(cache->sessions()->usage(2).is_open);
    now_s = 14;
    serve_session(*cache, session_prompt(2000), 0, now_s);  // at 15
    CHECK_FALSE(cache->sessions()->usage(2).is_open);
    CHECK(serve_session(*cache, session_prompt(0), 1, now_s) == 60);
    CHECK(cache->sessions()->usage(1).is_open);

    options.sessions = {.remembered = 16, .most_bytes = 2 * session_prompt_bytes};
    cache = make_request_cache(options);
    serve_session(*cache, session_prompt(90'000), 2, now_s);
    for (int i = 0; i < 5; ++i) serve_session(*cache, session_prompt(1000 * i), 1, now_s);
    CHECK(cache->sessions()->usage(1).bytes == 5 * session_prompt_bytes);
    for (int i = 10; i < 18; ++i) serve_session(*cache, session_prompt(1000 * i), 1, now_s);
    CHECK(serve_session(*cache, session_prompt(90'000), 2, now_s) == 60);
    for (int i = 20; i < 24; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
    CHECK(cache->sessions()->usage(1).bytes > session_prompt_bytes);
    CHECK(cache->sessions()->usage(1).is_open);
    CHECK(serve_session(*cache, session_prompt(90'000), 2, now_s) == 60);
  }
}

TEST_CASE("pins and floors of tenants keep contents of closed sessions") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = session_cache(index, 8);
    options.tenant_quotas = 1;
    options.prefixes = {.pins = 1, .pinned_bytes = session_prompt_bytes};
    const auto cache = make_request_cache(options);
    double now_s = 0;
    serve_session(*cache, session_prompt(0), 1, now_s);
    serve_session(*cache, session_prompt(1000), 2, now_s, {}, "a");
    CHECK(cache->prefixes()->pin({.tokens = session_prompt(0), .now_s = now_s}, 0).pin == 1);
    cache->tenants()->set_quota({.salt = "a", .floor_bytes = session_prompt_bytes + 20});
    CHECK(cache->sessions()->close(1));
    CHECK(cache->sessions()->close(2));
    for (int i = 10; i < 30; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
    CHECK(cache->sessions()->usage(1).bytes == session_prompt_bytes);
    CHECK(cache->sessions()->usage(2).bytes == session_prompt_bytes);
    CHECK(cache->prefixes()->unpin(1));
    cache->tenants()->set_quota({.salt = "a"});
    serve_session(*cache, session_prompt(80'000), 0, now_s);
    serve_session(*cache, session_prompt(81'000), 0, now_s);
    serve_session(*cache, session_prompt(82'000), 0, now_s);
    CHECK(cache->sessions()->usage(1).bytes == 0);
    CHECK(cache->sessions()->usage(2).bytes == 0);
  }
}

TEST_CASE("a floor keeps what it covers of a closed session, to within a page and a state, with several groups too") {
  for (const Combination index : every_combination)
    for (std::int64_t above = 0; above <= session_prompt_bytes; above += 2) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(above);
      RequestCacheOptions options = session_cache(index, 8);
      options.tenant_quotas = 1;
      if (in_columns(index)) columns(options).groups.push_back(columns(options).groups[0]);
      const auto cache = make_request_cache(options);
      double now_s = 0;
      serve_session(*cache, session_prompt(0), 1, now_s, {}, "a");
      const auto held_bytes = [&] {
        const TenantUsage usage = cache->tenants()->usage(NameKey(std::string("a")));
        return usage.kv_bytes + usage.state_bytes;
      };
      REQUIRE(held_bytes() == session_prompt_bytes);
      const std::int64_t floor_bytes = session_prompt_bytes - above;
      cache->tenants()->set_quota({.salt = "a", .floor_bytes = floor_bytes});
      CHECK(cache->sessions()->close(1));
      for (int i = 10; i < 30; ++i) serve_session(*cache, session_prompt(1000 * i), 0, now_s);
      CHECK(held_bytes() >= floor_bytes);
      CHECK(held_bytes() <= floor_bytes + 44);  // a page and a state
    }
}

TEST_CASE("a table that is full remembers the sessions that were heard of last") {
  RequestCacheOptions options = session_cache(Combination::tree_slots, 40);
  options.sessions.remembered = 1;  // 8 places
  const auto cache = make_request_cache(options);
  CacheSessions& sessions = *cache->sessions();
  double now_s = 0;
  for (unsigned i = 0; i < 12; ++i) serve_session(*cache, session_prompt(1000 * static_cast<int>(i)), 1 + i, now_s);
  for (unsigned i = 0; i < 4; ++i) {
    CHECK_FALSE(sessions.usage(1 + i).is_open);
    CHECK_FALSE(sessions.close(1 + i));
  }
  for (unsigned i = 4; i < 12; ++i) CHECK(sessions.usage(1 + i).bytes == session_prompt_bytes);
  CHECK(sessions.close(12));
  serve_session(*cache, session_prompt(50'000), 13, now_s);  // a closed one makes room first
  CHECK(sessions.usage(5).is_open);
  CHECK(sessions.usage(13).is_open);
  CHECK_FALSE(sessions.close(12));
  cache->reset();
  CHECK(sessions.usage(13).bytes == 0);
  cache->check_invariants();
}

TEST_CASE("sessions that cannot be are refused") {
  RequestCacheOptions options = session_cache(Combination::tree_slots, 8);
  const auto cache = make_request_cache(options);
  CHECK_THROWS_WITH_AS(cache->sessions()->close(0), doctest::Contains("session = 0"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(cache->sessions()->usage(0)), doctest::Contains("session = 0"),
                       InvalidArgument);
  CHECK_FALSE(cache->sessions()->close(7));
  CHECK(cache->sessions()->usage(7).bytes == 0);
  const auto refused = [](const RequestCacheOptions& bad, const char* text) {
    CHECK_THROWS_WITH_AS(make_request_cache(bad), doctest::Contains(text), InvalidArgument);
  };
  options.sessions = {.remembered = -1};
  refused(options, "sessions.remembered = -1");
  options.sessions = {.remembered = (1 << 20) + 1};
  refused(options, "sessions.remembered");
  options.sessions = {.remembered = 1, .idle_s = -1};
  refused(options, "sessions.idle_s = -1");
  options.sessions = {.remembered = 1, .idle_s = std::numeric_limits<double>::infinity()};
  refused(options, "sessions.idle_s");
  options.sessions = {.remembered = 1, .most_bytes = -1};
  refused(options, "sessions.most_bytes = -1");
  options.sessions = {};
  CHECK(make_request_cache(options)->sessions() == nullptr);
}

TEST_CASE("whatever an engine does with sessions, every state is right, and the books agree") {
  for (const Combination index : every_combination)
    for (const bool tiers : {false, true})
      for (const bool arena : {false, true}) {
        if (arena && in_columns(index)) continue;
        CAPTURE(static_cast<int>(index));
        CAPTURE(tiers);
        CAPTURE(arena);
        std::int64_t closed = 0, hits = 0, seeds = 0;
        for_each_seed(120, [&](Random& random, std::uint64_t) {
          RequestCacheOptions options = random_options(random, index);
          options.sessions.remembered = random.between32(1, 20);
          if (arena) draw_arena(random, options);
          if (tiers) options.tiers = random_tiers(random, options);
          RandomEngine engine(random, options);
          engine.habits = {.changes_weights = random.chance(50), .forks = random.chance(30)};
          for (int part = 0; part < 2; ++part) {
            for (int step = 0; step < 150; ++step) engine.step();
            engine.finish();
          }
          closed += engine.closed;
          hits += engine.hits;
          ++seeds;
        });
        if (seeds < 120) continue;
        CHECK(closed > 40);
        CHECK(hits > 40);
      }
}
