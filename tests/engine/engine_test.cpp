// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <doctest/doctest.h>

#include "random.hpp"

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("every cache gives the oracle's tokens and final states under random schedules") {
  for (const std::string_view cache : cache_names()) {
    CAPTURE(cache);
    CacheCounts counts;
    test::for_each_seed(300, [&](test::Random&, std::uint64_t seed) {
      const auto failure = check(draw_problem(seed), cache, counts);
      if (failure) FAIL(*failure);
    });
    // The schedules are worth their time: states are found, and there are too few slots.
    if (cache == "none") continue;
    CHECK(counts.hit_tokens * 10 > counts.lookup_tokens);
    CHECK(counts.evictions > 300);
  }
}

namespace {

/// The first of 300 seeds whose schedule shows the fault; 0: none does.
std::uint64_t found_at(Fault fault, std::string_view cache) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Problem problem = draw_problem(seed);
    problem.schedule.cache.fault = fault;
    if (difference(problem, cache)) return seed;
  }
  return 0;
}

}  // namespace

TEST_CASE("the comparison finds blocks that the older chunk split poisons") {
  const std::uint64_t seed = found_at(Fault::older_split, "align");
  MESSAGE("found at seed " << seed);
  CHECK(seed > 0);
}

TEST_CASE("the comparison finds a conv window that is shifted by one token too few") {
  const std::uint64_t seed = found_at(Fault::wrong_shift, "align");
  MESSAGE("found at seed " << seed);
  CHECK(seed > 0);
}

TEST_CASE("a schedule that fails is cut down and told with what happened in it") {
  Problem problem = draw_problem(1);
  problem.schedule.cache.fault = Fault::wrong_shift;
  const Problem shortest = shrink(problem, "align");
  CHECK(difference(shortest, "align"));
  CHECK(shortest.schedule.requests.size() + shortest.schedule.events.size() <= 2);
  CacheCounts counts;
  const auto told = check(problem, "align", counts);
  REQUIRE(told);
  for (const char* part : {"cache align", "seed 1:", "new tokens after", "computes", "differs"})
    CHECK(told->find(part) != std::string::npos);
}
