// SPDX-License-Identifier: Apache-2.0
// Whole lives of requests in a small engine whose states are symbols, see align_world.hpp.
#include "align_world.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using test::AlignWorld;
using test::Random;
using test::WorldOptions;

namespace {

struct Totals {
  std::int64_t publications = 0, wrong_publications = 0, refusals = 0, hits = 0;
};

/// Runs worlds; a world's own results must be right, whichever blocks are published, unless it reads a poisoned block.
Totals run_worlds(std::uint64_t count, const WorldOptions& options, bool may_be_poisoned) {
  Totals totals;
  test::for_each_seed(count, [&](Random& random, std::uint64_t) {
    AlignWorld world(random, options);
    const std::int64_t steps = random.between(5, 25);
    for (std::int64_t i = 0; i < steps; ++i) {
      world.step();
      if (may_be_poisoned) continue;
      REQUIRE(world.wrong_reads == 0);
      REQUIRE(world.wrong_publications == 0);
      REQUIRE(world.writes_to_published == 0);
    }
    totals.publications += world.publications;
    totals.wrong_publications += world.wrong_publications;
    totals.refusals += world.refusals;
    totals.hits += world.hits;
  });
  return totals;
}

}  // namespace

TEST_CASE("20,000 random lives read and publish no wrong state") {
  const Totals totals = run_worlds(20000, {}, false);
  CHECK(totals.publications > 1000);
  CHECK(totals.hits > 100);
}

TEST_CASE("the chunk split alone keeps blocks right that are published without asking") {
  const Totals totals = run_worlds(4000, {.checked = false}, false);
  CHECK(totals.publications > 1000);
  CHECK(totals.hits > 100);
}

TEST_CASE("the oracle finds the blocks that the older split poisons") {
  const Totals totals = run_worlds(2000, {.older_split = true, .checked = false}, true);
  CHECK(totals.wrong_publications > 10);
}

TEST_CASE("the publication check refuses blocks that the older split would poison") {
  const Totals totals = run_worlds(2000, {.older_split = true}, false);
  CHECK(totals.refusals > 10);
  CHECK(totals.wrong_publications == 0);
}
