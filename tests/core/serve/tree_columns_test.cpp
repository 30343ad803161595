// SPDX-License-Identifier: Apache-2.0
// A prefix tree over states in the columns of block tables.
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve_alone.hpp"
#include "state_world.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;
using Tokens = StateWorld::Tokens;

/// Pages of 4 tokens; two groups of layers have states every 8 tokens.
RequestCacheOptions two_groups(std::int32_t blocks, AlignMode mode = AlignMode::align) {
  RequestCacheOptions options = small_cache(Combination::tree_columns);
  columns(options).mode = mode;
  options.max_requests = 2;
  options.events = true;
  columns(options).groups = {{.block_size_tokens = 8, .blocks = blocks, .conv_window = 3, .layout_fingerprint = 7},
                             {.block_size_tokens = 8, .blocks = blocks + 5, .conv_window = 3, .layout_fingerprint = 8}};
  return options;
}

/// A prompt of its own whose first 8 tokens are a boundary.
Tokens numbered(Token number) {
  return counting(9, 100 * number);
}

std::vector<CacheEvent> events_of(RequestCache& cache) {
  std::vector<CacheEvent> events(1000);
  events.resize(cache.take_events(events));
  return events;
}

}  // namespace

TEST_CASE("prompts that part inside a block of states share KV up to their page, and the state before it") {
  const RequestCacheOptions options = two_groups(20);
  const auto cache = make_request_cache(options);
  StateWorld world(options);
  Tokens first = counting(29);
  CHECK(serve_alone(*cache, world, first, 1, RequestEnd::finished, 8).reused_tokens == 0);
  Tokens second = first;
  for (std::size_t at = 22; at < second.size(); ++at) second[at] += 1000;
  const StartedRequest branch = serve_alone(*cache, world, second, 1);
  CHECK(branch.reused_tokens == 16);
  CHECK(branch.lost == LostHit::off_grid);
  CHECK(branch.lost_tokens == 4);  // the page from 16 to 20 is cached, and no boundary lies at its end
  // The tree has both branches: 24 tokens of each, of which they share 20.
  CHECK(cache->usage().kv_tokens == 20 + 4 + 4);
  CHECK(serve_alone(*cache, world, first, 1).reused_tokens == 24);
  CHECK(serve_alone(*cache, world, second, 1).reused_tokens == 24);
}

TEST_CASE("checkpoints make room for requests that run, in all groups at once") {
  for (const AlignMode mode : {AlignMode::align, AlignMode::all}) {
    CAPTURE(static_cast<int>(mode));
    // A request of 96 tokens in mode all takes 12 blocks.
    const RequestCacheOptions options = two_groups(13, mode);
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    for (Token number = 1; number <= 12; ++number) serve_alone(*cache, world, numbered(number), 1);
    static_cast<void>(events_of(*cache));
    CHECK(serve_alone(*cache, world, counting(9, 5000), 80).reused_tokens == 0);
    std::vector<PrefixHash> gone[2];
    for (const CacheEvent& event : events_of(*cache))
      if (event.kind == CacheEvent::Kind::removed && event.content == CacheContent::state)
        gone[event.group].push_back(event.prefix);
    REQUIRE(!gone[0].empty());
    CHECK(gone[0] == gone[1]);
    CHECK(cache->usage().evicted_states == 2 * std::ssize(gone[0]));
    // The oldest went, and no more of them than the request left states.
    const auto count = static_cast<Token>(gone[0].size());
    CHECK(count <= 11);
    const auto oldest = cache->start({.tokens = numbered(1)});
    CHECK(oldest->reused_tokens == 0);
    cache->abort(oldest->request);
    const auto kept = cache->start({.tokens = numbered(12)});
    CHECK(kept->reused_tokens == 8);
    cache->abort(kept->request);
  }
}

TEST_CASE("a request in mode all holds no block that it has passed once the tree can give it up") {
  RequestCacheOptions options = two_groups(13, AlignMode::all);
  const auto cache = make_request_cache(options);
  StateWorld world(options);
  const auto long_one = cache->start({.tokens = counting(81)});
  const PassRow pass{.request = long_one->request, .tokens = 81};
  const PassPlan plan = cache->plan({&pass, 1});
  world.before(plan);
  world.run(0, plan.rows[0], {}, counting(81));
  const std::int32_t one = 1;
  const Token sampled = 7;
  world.after(cache->commit(plan.pass, {&one, 1}, {&sampled, 1}));
  const PassRow next{.request = long_one->request, .tokens = 1};
  cache->cancel(cache->plan({&next, 1}).pass);
  CHECK(std::ranges::count(cache->state(long_one->request).slots, null_block) == 10);
  // Another request finds room by evicting states of the first, which runs on.
  CHECK(serve_alone(*cache, world, counting(60, 3000), 1).reused_tokens == 0);
  CHECK(cache->usage().evicted_states > 0);
  CHECK(world.read(cache->state(long_one->request), 0) == counting(81));
  cache->finish(long_one->request);
}

TEST_CASE("an order that learns decides over states in columns, and hears of the ends of requests") {
  // Of two prompts the one that will not be continued is evicted first, although it was used last. A request that
  // continued from a state and ended a page later says that it waits for a tool, and the state stays.
  for (const auto& [order, continues] : {std::pair(EvictionOrder::lru, false), std::pair(EvictionOrder::hix, false),
                                         std::pair(EvictionOrder::hix, true)}) {
    CAPTURE(name(order));
    CAPTURE(continues);
    RequestCacheOptions options = two_groups(13);
    options.eviction = order;
    options.eviction_options.samples = -1;
    options.position_tokens = 8;
    options.memory = {.state_bytes = 100, .kv_bytes_per_token = 1};
    const auto cache = make_request_cache(options);
    double now_s = 0;
    const auto serve = [&](const Tokens& prompt, const ReuseHint& hint = {}) {
      const auto started = cache->start({.tokens = prompt, .now_s = now_s += 1});
      REQUIRE(started);
      for (std::int64_t left = std::ssize(prompt) - started->reused_tokens; left > 0;) {
        const PassRow pass{.request = started->request,
                           .tokens = static_cast<std::int32_t>(cache->chunk(started->request, left).tokens)};
        left -= pass.tokens;
        const std::int32_t count = left == 0 ? 1 : 0;
        const Token sampled = 7;
        static_cast<void>(cache->commit(cache->plan({&pass, 1}).pass, {&count, 1}, {&sampled, left == 0 ? 1u : 0u}));
      }
      cache->end(started->request, RequestEnd::finished, hint);
      return started->reused_tokens;
    };
    for (Token number = 1; cache->usage().evicted_states == 0; ++number) {
      serve(numbered(number), {.last_turn = number == 2 && !continues});
      if (number == 2 && continues) serve(counting(13, 100 * number), {.tool_call_pending = true});
    }
    const Token kept = order == EvictionOrder::lru || continues ? 2 : 1;
    const std::int64_t hits = continues ? 1 : 0;
    CHECK(serve(numbered(kept)) == 8);
    CHECK(cache->stats().reuse_ages.total() == hits + 1);
    CHECK(serve(numbered(3 - kept)) == 0);
    CHECK(cache->stats().reuse_ages.total() == hits + 1);
  }
}

/// The fewest blocks that are accepted are enough for a request alone, however long it gets.
TEST_CASE("a request in the smallest cache runs to its end") {
  for (const AlignMode mode : {AlignMode::align, AlignMode::all})
    for (const bool overlap : {false, true})
      for (const std::int32_t drafts : {0, 1, 3}) {
        CAPTURE(static_cast<int>(mode));
        CAPTURE(overlap);
        CAPTURE(drafts);
        RequestCacheOptions options = two_groups(0, mode);
        options.drafts = drafts;
        options.overlap = overlap;
        columns(options).groups[1].block_size_tokens = 16;
        for (StateGroup& group : columns(options).groups) group.conv_window = 3 + drafts;
        for (StateGroup& group : columns(options).groups) {
          const std::int64_t resident =
              resident_blocks(mode, options.max_request_tokens, group.block_size_tokens, drafts, 0);
          group.blocks = static_cast<std::int32_t>(resident) + (overlap ? 1 : 0);
        }
        for (StateGroup& group : columns(options).groups) {
          CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(options)), doctest::Contains("blocks"),
                               InvalidArgument);
          ++group.blocks;
        }
        const auto cache = make_request_cache(options);
        const Tokens prompt = counting(20);
        const auto started = cache->start({.tokens = prompt});
        std::int64_t known = std::ssize(prompt);
        for (std::int64_t computed = 0; known + drafts < options.max_request_tokens;) {
          const auto left = static_cast<std::int32_t>(known - computed);
          const std::int32_t tokens =
              computed < 20 ? static_cast<std::int32_t>(cache->chunk(started->request, left).tokens) : 1 + drafts;
          const PassRow row{.request = started->request, .tokens = tokens, .drafts = computed < 20 ? 0 : drafts};
          const PassPlan plan = cache->plan({&row, 1});
          REQUIRE(plan.rows_without_room == 0);
          // The first draft alone is kept, so that the window moves at every offset.
          const std::int32_t count = computed + tokens < 20 ? 0 : std::min(1 + row.drafts, 2);
          const std::array<Token, 2> sampled = {7, 7};
          static_cast<void>(cache->commit(plan.pass, {&count, 1}, std::span(sampled).first(std::size_t(count))));
          cache->check_invariants();
          computed = cache->computed(started->request);
          known += count;
        }
        cache->finish(started->request);
      }
}

TEST_CASE("a row that finds no room evicts nothing") {
  // Of 13 blocks the first request takes 7 and the checkpoint 1; the second needs 7.
  const RequestCacheOptions options = two_groups(13, AlignMode::all);
  const auto cache = make_request_cache(options);
  StateWorld world(options);
  serve_alone(*cache, world, numbered(1), 1);
  const auto first = cache->start({.tokens = counting(60, 3000)});
  const auto second = cache->start({.tokens = counting(60, 4000)});
  const std::array rows = {PassRow{.request = first->request, .tokens = 56},
                           PassRow{.request = second->request, .tokens = 56}};
  const PassPlan plan = cache->plan(rows);
  CHECK(plan.rows[0].room);
  CHECK(!plan.rows[1].room);
  CHECK(cache->usage().evicted_states == 0);
  cache->abort(second->request);
  cache->abort(first->request);
  CHECK(cache->start({.tokens = numbered(1)})->reused_tokens == 8);
}

TEST_CASE("two requests that load one state read the same blocks of states and of KV") {
  PushedDown server(small(Combination::tree_columns, host));
  const auto first = server.start({.tokens = server.prompt});
  const auto second = server.start({.tokens = server.prompt});
  REQUIRE((first->load && second->load));
  server.move_all();
  const HitPlaces places = server.cache->places(first->request);
  CHECK(places.tokens == 32);
  CHECK(server.cache->places(second->request).state == places.state);
  CHECK(std::ranges::equal(server.cache->places(second->request).kv.ids, places.kv.ids));
  CHECK(server.cache->usage().states == 1);
  CHECK(server.cache->usage().kv_tokens == 32);
}

TEST_CASE("a tree over columns refuses options that keep no state") {
  RequestCacheOptions options = two_groups(13);
  columns(options).mode = AlignMode::none;
  CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(options)), doctest::Contains("mode = none"),
                       InvalidArgument);
}

}  // namespace stateport
