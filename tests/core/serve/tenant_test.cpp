// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include "marked_memory.hpp"
#include "random.hpp"
#include "random_engine.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

using namespace stateport;
using namespace stateport::test;

namespace {

constexpr std::array every_index = {CacheIndex::slots, CacheIndex::tree, CacheIndex::align};

/// What tenants could read, over all schedules.
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
};

/// Two tenants on one cache, which is reset once and used again.
void run_schedule(CacheIndex index, const Schedules& schedules, std::uint64_t seed, Looked& looked) {
  Random random(seed);
  RequestCacheOptions options = random_options(random, index);
  options.scrub = schedules.scrub;
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

Looked run_tenants(CacheIndex index, const Schedules& schedules) {
  Looked looked;
  for_each_seed(schedules.seeds, [&](Random&, std::uint64_t seed) { run_schedule(index, schedules, seed, looked); });
  return looked;
}

}  // namespace

TEST_CASE("with scrub no tenant can read a byte of another, whatever an engine does") {
  for (const CacheIndex index : every_index)
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

TEST_CASE("schedules that found faults once hold") {
  Looked looked;
  // Draining: what made room for KV in files was the last state that needed it.
  run_schedule(CacheIndex::slots, {.tiers = true}, 17406, looked);
  run_schedule(CacheIndex::tree, {.tiers = true}, 20845, looked);
  CHECK(looked.own > 0);
}

TEST_CASE("without scrub, or if an engine leaves out one list of a plan, a tenant can read bytes of another") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const auto leaks = [&](const Schedules& schedules) {
      const Looked looked = run_tenants(index, schedules);
      return looked.seeds < 100 || looked.leaking_seeds > 5;
    };
    const bool in_columns = index == CacheIndex::align;
    CHECK(leaks({.scrub = false}));
    CHECK(leaks({.ignored = {.kv_blocks = true}}));
    if (!in_columns) CHECK(leaks({.ignored = {.scratch = true}}));
    if (!in_columns) CHECK(leaks({.ignored = {.draft_rows = true}}));
    if (index != CacheIndex::slots) CHECK(leaks({.ignored = {.clear = true}}));
  }
}
