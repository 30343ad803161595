// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include "marked_memory.hpp"
#include "random.hpp"
#include "random_engine.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

/// Bytes that tenants could read, over all schedules.
struct Looked {
  std::uint64_t seeds = 0;
  std::int64_t bytes = 0;
  std::int64_t own = 0;
  std::int64_t leaks = 0;
  std::int64_t leaking_seeds = 0;
  std::int64_t loads = 0;
};

struct Schedules {
  std::uint64_t seeds = 100;
  bool scrub = true;
  bool tiers = false;
  IgnoredLists ignored;
  bool arena = false;
};

/// Two tenants on one cache, which is reset once and used again.
void run_schedule(Combination index, const Schedules& schedules, std::uint64_t seed, Looked& looked) {
  Random random(seed);
  RequestCacheOptions options = random_options(random, index);
  options.scrub = schedules.scrub;
  if (schedules.arena) draw_arena(random, options);
  if (schedules.tiers) options.tiers = random_tiers(random, options);
  MarkedMemory memory(options, schedules.ignored);
  RandomEngine engine(random, options);
  engine.mark(memory);
  for (int part = 0; part < 2; ++part) {
    for (int step = 0; step < 100; ++step) engine.step();
    engine.finish();
  }
  const bool must_hold = schedules.scrub && !schedules.ignored.any();
  if (must_hold) REQUIRE_MESSAGE(memory.leaks() == 0, "seed ", seed);
  ++looked.seeds;
  looked.bytes += memory.looked();
  looked.own += memory.own();
  looked.leaks += memory.leaks();
  looked.leaking_seeds += memory.leaks() > 0;
  looked.loads += engine.loads + engine.found_loads;
}

Looked run_tenants(Combination index, const Schedules& schedules) {
  Looked looked;
  for_each_seed(schedules.seeds, [&](Random&, std::uint64_t seed) { run_schedule(index, schedules, seed, looked); });
  return looked;
}

}  // namespace

TEST_CASE("with scrub no tenant can read a byte of another, whatever an engine does") {
  for (const Combination index : every_combination)
    for (const bool tiers : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers);
      const Looked looked = run_tenants(index, {.tiers = tiers});
      CHECK(looked.leaks == 0);
      CHECK(looked.own > 0);
      MESSAGE("looked at ", looked.bytes, " bytes, ", looked.own, " of them written by the reader, after ",
              looked.loads, " loads");
      if (looked.seeds >= 100) CHECK((looked.loads > 0) == tiers);
    }
}

TEST_CASE("nor if memory that strangers had comes to the cache") {
  for (const Combination index : slot_combinations)
    for (const bool tiers : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers);
      const Looked looked = run_tenants(index, {.tiers = tiers, .arena = true});
      CHECK(looked.leaks == 0);
      CHECK(looked.own > 0);
    }
}

TEST_CASE("a row without room for states names no KV that it has got and that is not cleared") {
  RequestCacheOptions options{.index = CacheIndex::hash,
                              .max_requests = 2,
                              .max_request_tokens = 16,
                              .drafts = 2,
                              .block_size_tokens = 4,
                              .kv_tokens = 32,
                              .scrub = true};
  const std::int32_t of_one = 1 + options.drafts;  // columns, until a row goes into the next one
  options.layout = ColumnLayout{
      .groups = {{.block_size_tokens = 8, .blocks = 2 * of_one, .conv_window = 5, .layout_fingerprint = 5}}};
  MarkedMemory memory(options);
  const auto cache = make_request_cache(options);
  // Two tenants take all blocks of states, and compute 5 of their 6 tokens.
  constexpr std::array<Token, 5> tokens = {1, 2, 3, 4, 5};
  std::array<RequestId, 2> requests;
  for (std::size_t i = 0; i < 2; ++i)
    requests[i] = cache->start({.tokens = tokens, .name_space = {.salt = i == 0 ? "a" : "b"}}).value().request;
  const auto run = [&](std::span<const PassRow> rows) {
    const PassPlan plan = cache->plan(rows);
    REQUIRE(plan.ready);
    REQUIRE(plan.rows_without_room == 0);
    memory.before(plan);
    for (std::size_t i = 0; i < plan.rows.size(); ++i) memory.run(i, plan.rows[i], plan.rows[i].request == requests[1]);
    const std::vector<std::int32_t> counts(rows.size(), 1);
    const std::vector<Token> sampled(rows.size(), 6);
    memory.after(cache->commit(plan.pass, counts, sampled));
    cache->check_invariants();
  };
  run(std::array{PassRow{.request = requests[0], .tokens = 5}, PassRow{.request = requests[1], .tokens = 5}});
  run(std::array{PassRow{.request = requests[0], .tokens = 1}});
  // With drafts it goes into the next block of states, of which there is none, and of KV, of which there is one.
  const PassPlan without_room = cache->plan(std::array{PassRow{.request = requests[0], .tokens = 3, .drafts = 2}});
  REQUIRE(without_room.rows_without_room == 1);
  cache->cancel(without_room.pass);
  run(std::array{PassRow{.request = requests[0], .tokens = 1}});
  CHECK(memory.leaks() == 0);
  CHECK(memory.own() > 0);
}

TEST_CASE("without scrub, or if an engine leaves out one list of a plan, a tenant can read bytes of another") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto leaks = [&](const Schedules& schedules) {
      const Looked looked = run_tenants(index, schedules);
      return looked.seeds < 100 || looked.leaking_seeds > 5;
    };
    const bool columns = in_columns(index);
    CHECK(leaks({.scrub = false}));
    CHECK(leaks({.ignored = {.kv_blocks = true}}));
    if (!columns) CHECK(leaks({.ignored = {.scratch = true}}));
    if (!columns) CHECK(leaks({.ignored = {.draft_rows = true}}));
    if (index != Combination::hash_slots) CHECK(leaks({.ignored = {.clear = true}}));
  }
}
