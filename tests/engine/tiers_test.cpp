// SPDX-License-Identifier: Apache-2.0
// Schedules of engines with a host and files below the device, which start again and find the folders of others.
#include "check.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <map>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE(
    "with a host and files below it each index and layout gives the oracle's tokens and final states, after restarts "
    "too") {
  std::map<std::string_view, CacheCounts> counts;
  std::uint64_t seeds = 0;
  test::for_each_seed(400, [&](test::Random&, std::uint64_t seed) {
    ++seeds;
    const std::string_view cache = cache_of_seed(seed);
    const auto failure = check(draw_problem(seed, {.tiers = true}), cache, counts[cache]);
    if (failure) FAIL(*failure);
  });
  if (seeds < 400) return;
  // States and KV really came back, and into engines that had not computed them.
  for (const auto& [cache, count] : counts) {
    CAPTURE(cache);
    const TierCounts& tiers = count.tiers;
    CHECK(tiers.stored_states > 50);
    CHECK(tiers.stored_blocks > 50);
    CHECK(tiers.loaded_states > 10);
    CHECK(tiers.loaded_blocks > 10);
    CHECK(tiers.host_hits > 3);
    CHECK(tiers.file_hits > 3);
    CHECK(tiers.restarts > 20);
    CHECK(tiers.restored_states > 3);
    CHECK(tiers.foreign_images > 50);
  }
}

TEST_CASE("a prompt that an engine has computed is loaded by the one after it, and by none of another layout") {
  for (const std::string_view cache : {"tree", "slots", "align", "tree-align"}) {
    CAPTURE(cache);
    Problem problem;
    Schedule& schedule = problem.schedule;
    schedule.seed = 1;
    schedule.cache = {.max_tokens = 32, .kv_tokens = 64, .type = ElementType::fp16, .tiers = {.host = 8, .files = 64}};
    schedule.budget_tokens = 32;
    for (std::int32_t id = 0; id < 2; ++id) {
      schedule.requests.push_back({.id = id, .arrival_step = 100 * id, .prompt = {}, .new_tokens = 4});
      for (Token token = 0; token < 21 + id; ++token) schedule.requests.back().prompt.push_back(token);
      problem.answers.push_back(answer_alone(target_model(schedule), schedule.requests.back().prompt, 4));
    }
    schedule.events.push_back({.kind = PlannedEvent::Kind::restart, .step = 90});
    CacheCounts counts;
    REQUIRE_FALSE(difference(problem, cache, &counts));
    CHECK(counts.hit_tokens == 20);
    CHECK(counts.tiers.file_hits == 1);
    CHECK(counts.tiers.restored_states == 1);
    CHECK(counts.tiers.loaded_blocks == 5);
    CHECK(counts.tiers.foreign_images == 0);
    // Without the restart, behind an engine that has served the same.
    schedule.events.clear();
    schedule.requests.pop_back();
    for (const OtherEngine other : {OtherEngine::other_type, OtherEngine::other_layout}) {
      schedule.other_engine = other;
      CacheCounts behind;
      REQUIRE_FALSE(difference(problem, cache, &behind));
      CHECK(behind.hit_tokens == 0);
      CHECK(behind.tiers.foreign_images > 0);
      CHECK(behind.tiers.loaded_states == 0);
    }
  }
}
