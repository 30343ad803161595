// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"
#include "features.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numeric>

using namespace stateport;
using namespace stateport::engine;

namespace {

/// Runs every cache under 300 random schedules; the one that keeps nothing is not asked to plan ahead.
void check_random_schedules(bool overlap) {
  for (const std::string_view cache : cache_names()) {
    if (overlap && cache == "none") continue;
    CAPTURE(cache);
    CacheCounts counts;
    std::array<int, 5> schedules_by_drafts = {};
    test::for_each_seed(400, [&](test::Random&, std::uint64_t seed) {
      const Problem problem = draw_problem(seed, {.overlap = overlap});
      ++schedules_by_drafts.at(static_cast<std::size_t>(problem.schedule.cache.drafts));
      const auto failure = check(problem, cache, counts);
      if (failure) FAIL(*failure);
    });
    if (std::accumulate(schedules_by_drafts.begin(), schedules_by_drafts.end(), 0) < 400) continue;
    // The schedules are worth their time: every number of drafts, states are found, and there are too few slots.
    CHECK(std::ranges::min(schedules_by_drafts) > 30);
    if (cache == "none") continue;
    CHECK(counts.hit_tokens * 10 > counts.lookup_tokens);
    CHECK(counts.evictions > 300);
    if (!overlap) continue;
    CHECK(counts.planned_ahead > 5000);
    CHECK(counts.ready_ahead > 1000);
  }
}

}  // namespace

TEST_CASE("every cache gives the oracle's tokens and final states under random schedules") {
  check_random_schedules(false);
}

TEST_CASE("every cache gives them when batches are planned ahead of the tokens of the batch before") {
  check_random_schedules(true);
}

namespace {

/// Runs every cache that keeps something under the schedules that `draw(seed)` draws, and gives what it counted to
/// `enough(cache, counts)`, unless other seeds were asked for.
template <class DrawRest, class Enough>
void check_each_cache(std::uint64_t most_seeds, const DrawRest& draw, const Enough& enough) {
  for (const std::string_view cache : cache_names()) {
    if (cache == "none") continue;
    CAPTURE(cache);
    CacheCounts counts;
    std::uint64_t seeds = 0;
    test::for_each_seed(most_seeds, [&](test::Random&, std::uint64_t seed) {
      ++seeds;
      const auto failure = check(draw_problem(seed, draw(seed)), cache, counts);
      if (failure) FAIL(*failure);
    });
    if (seeds >= most_seeds) enough(cache, counts);
  }
}

}  // namespace

TEST_CASE("two tenants get the oracle's tokens and final states when memory that a plan scrubs is lost") {
  check_each_cache(
      60, [](std::uint64_t seed) { return Draw{.overlap = seed % 2 == 0, .tenants = true}; },
      [](std::string_view, const CacheCounts& counts) { CHECK(counts.hit_tokens * 20 > counts.lookup_tokens); });
}

namespace {

/// Runs caches under random schedules, of each of which `draw(random, tiers)` draws the rest, and `runs(cache, tiers,
/// seed)` says whether a cache is asked. Returns what they counted; nothing after fewer seeds than 300.
template <class DrawRest, class Runs>
std::map<std::string_view, CacheCounts> check_combinations(const DrawRest& draw, const Runs& runs) {
  std::uint64_t seeds = 0;
  std::map<std::string_view, CacheCounts> counts;
  test::for_each_seed(300, [&](test::Random& random, std::uint64_t seed) {
    ++seeds;
    const bool tiers = random.chance(40);
    const Problem problem = draw_problem(seed, draw(random, tiers));
    for (const std::string_view cache : cache_names()) {
      if (!runs(cache, tiers, seed)) continue;
      const auto failure = check(problem, cache, counts[cache]);
      if (failure) FAIL(*failure);
    }
  });
  if (seeds < 300) counts.clear();
  return counts;
}

/// Each seed asks one cache.
bool is_of_seed(std::string_view cache, bool, std::uint64_t seed) {
  return cache == cache_of_seed(seed);
}

}  // namespace

TEST_CASE("every cache in slots gives them when memory moves between KV and states, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(30),
                .arena = true,
                .named = random.chance(30)};
  };
  const auto in_slots = [](std::string_view cache, bool, std::uint64_t) {
    return cache == "slots" || cache == "tree" || cache == "tree-copy";
  };
  for (const auto& [cache, count] : check_combinations(draw, in_slots)) {
    CAPTURE(cache);
    CHECK(count.hit_tokens * 10 > count.lookup_tokens);
    CHECK(count.memory_moves > 1000);
    CHECK(count.kv_copies > 10);
  }
}

TEST_CASE("every cache in slots gives them when drafts are trees, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.trees = true,
                .overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(20),
                .arena = random.chance(20),
                .weights = random.chance(20),
                .forks = random.chance(30),
                .integrity = random.chance(30)};
  };
  const auto one_in_slots = [](std::string_view cache, bool, std::uint64_t seed) {
    return cache == std::array{"slots", "tree", "tree-copy"}.at(seed % 3);
  };
  for (const auto& [cache, count] : check_combinations(draw, one_in_slots)) {
    CAPTURE(cache);
    CHECK(count.kv_moves > 200);
    MESSAGE(cache << ": " << count.kv_moves << " moves of KV");
  }
}

TEST_CASE("every cache gives them when prompts name positions and states lie before tails, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50), .tiers = tiers, .tenants = random.chance(30), .named = true};
  };
  const auto one_with_tiers = [](std::string_view cache, bool tiers, std::uint64_t seed) {
    return cache != "none" && (!tiers || cache == cache_of_seed(seed));
  };
  for (const auto& [cache, count] : check_combinations(draw, one_with_tiers)) {
    CAPTURE(cache);
    CHECK(count.hit_tokens * 10 > count.lookup_tokens);
    CHECK(count.planned_ahead > 1000);
  }
}

TEST_CASE("every cache gives them when requests come at once and wait for each other's prefixes, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(30),
                .arena = random.chance(20),
                .named = random.chance(20),
                .weights = random.chance(20),
                .bursts = true};
  };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.hit_tokens > 300);  // an engine that waits for files looks prompts up again and again
    CHECK(count.awaited_tokens > 5);
    MESSAGE(cache << ": " << count.hit_tokens << " of " << count.lookup_tokens << " tokens were hits, "
                  << count.awaited_tokens << " of them waited for");
  }
}

TEST_CASE("every cache gives them when requests go on from what others have computed, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(30),
                .arena = random.chance(20),
                .named = random.chance(20),
                .weights = random.chance(20),
                .bursts = random.chance(20),
                .forks = true};
  };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.forks > 10);
    MESSAGE(cache << ": " << count.forks << " forks");
  }
}

TEST_CASE("every cache gives those of the weights with which a request began, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(40),
                .arena = random.chance(20),
                .named = random.chance(20),
                .weights = true};
  };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.hit_tokens * 20 > count.lookup_tokens);
  }
}

TEST_CASE("a trainer swaps weights every 20 requests while others run, and gets those of the weights that it gave") {
  check_each_cache(
      3, [](std::uint64_t seed) { return Draw{.overlap = seed % 2 == 0, .rollouts = true}; },
      [](std::string_view cache, const CacheCounts& counts) {
        CHECK(counts.stale > 15);
        CHECK(counts.hit_tokens * 16 > counts.lookup_tokens);
        MESSAGE(cache << ": " << counts.stale << " requests ran when the weights changed; " << counts.hit_tokens
                      << " of " << counts.lookup_tokens << " tokens were hits");
      });
}

TEST_CASE("the comparison finds a conv window that is shifted by one token too few") {
  const auto found = find_fault(Fault::wrong_shift, "align", 300);
  REQUIRE(found);
  MESSAGE("found at seed " << found->seed << ": " << found->reported);
  CHECK(found->causes() == 1);
}

TEST_CASE("a schedule that fails is cut down and printed with its events") {
  Problem problem = draw_problem(1);
  problem.schedule.cache.fault = Fault::wrong_shift;
  const Problem shortest = shrink(problem, "align");
  CHECK(difference(shortest, "align"));
  REQUIRE(shortest.schedule.requests.size() == 1);
  CHECK(std::ssize(shortest.schedule.requests[0].prompt) + shortest.schedule.requests[0].new_tokens < 10);
  CHECK(shortest.schedule.events.empty());
  CacheCounts counts;
  const auto reported = check(problem, "align", counts);
  REQUIRE(reported);
  for (const char* part : {"cache align", "seed 1:", "new tokens after", "computes", "differs"})
    CHECK(reported->find(part) != std::string::npos);
}

TEST_CASE("every cache gives them when prefixes are pinned and prefetched and sessions closed, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) {
    return Draw{.overlap = random.chance(50),
                .tiers = tiers,
                .tenants = random.chance(40),
                .held = true,
                .arena = random.chance(20),
                .named = random.chance(20),
                .weights = random.chance(20)};
  };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.hit_tokens * 20 > count.lookup_tokens);
  }
}

namespace {

/// Everything that goes on beside checks of checkpoints.
Draw draw_with_checks(test::Random& random, bool tiers, bool damage) {
  return {.overlap = random.chance(50),
          .tiers = tiers,
          .tenants = random.chance(30),
          .held = random.chance(20),
          .arena = random.chance(20),
          .named = random.chance(20),
          .weights = random.chance(20),
          .bursts = random.chance(20),
          .forks = random.chance(20),
          .integrity = true,
          .damage = damage};
}

}  // namespace

TEST_CASE("every cache gives them when all checkpoints are checked, and no check fails, in all combinations") {
  const auto draw = [](test::Random& random, bool tiers) { return draw_with_checks(random, tiers, false); };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.checks > 100);
    CHECK(count.faults == 0);
    MESSAGE(cache << ": " << count.checks << " checks");
  }
}

TEST_CASE("every cache gives them when something writes to checkpoints that no pass may read then") {
  const auto draw = [](test::Random& random, bool tiers) { return draw_with_checks(random, tiers, true); };
  for (const auto& [cache, count] : check_combinations(draw, is_of_seed)) {
    CAPTURE(cache);
    CHECK(count.faults > 20);
    CHECK(count.withdrawn > 20);
    MESSAGE(cache << ": " << count.damaged << " checkpoints written to, " << count.checks << " checks, " << count.faults
                  << " faults, " << count.withdrawn << " checkpoints withdrawn");
  }
}

TEST_CASE("an engine that does not wait for the checks of its states gives other tokens") {
  for (const std::string_view cache : {"slots", "tree", "align", "tree-align"}) {
    CAPTURE(cache);
    const auto found = find_fault(Fault::unread_verdicts, cache, 300, {.damage = true});
    REQUIRE(found);
    MESSAGE("found at seed " << found->seed << ": " << found->reported);
    CHECK(found->causes() <= 3);
  }
}

TEST_CASE("caches give them with a mixture of features that each schedule draws") {
  std::uint64_t seeds = 0;
  FeatureCounts schedules;
  CacheCounts counts;
  test::for_each_seed(300, [&](test::Random&, std::uint64_t seed) {
    ++seeds;
    const Mixture mixture = draw_mixture(seed);
    schedules.add(mixture.draw);
    const auto failure = check(draw_problem(seed, mixture.draw), mixture.cache, counts);
    if (failure) FAIL(*failure);
  });
  if (seeds < 300) return;
  MESSAGE(schedules);
  CHECK(schedules.least_pair() > 10);
  CHECK(counts.hit_tokens * 20 > counts.lookup_tokens);
  CHECK(counts.planned_ahead > 1000);
  CHECK(counts.awaited_tokens > 5);
  CHECK(counts.forks > 20);
  CHECK(counts.stale > 50);
  CHECK(counts.kv_moves > 100);
  CHECK(counts.memory_moves > 100);
  CHECK(counts.withdrawn > 20);
  CHECK(counts.tiers.loaded_states > 100);
  CHECK(counts.tiers.restarts > 20);
}
