// SPDX-License-Identifier: Apache-2.0
// Learning policies under events that the test reports by hand.
#include <stateport/core/evict/eviction_policy.hpp>

#include "plain_tenants.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

using namespace stateport;

namespace {

VictimFacts leaf_with_state(std::uint32_t index) {
  VictimFacts facts{.index = index, .has_state = true};
  facts.used_tick = 1;
  facts.tokens = facts.segment_tokens = facts.end_tokens = facts.chain_tokens = 100;
  return facts;
}

/// The key after two prompts ended, the second one long after the first, and the candidates `removed` left the cache:
/// candidate 0 ends the prefix that is left of both.
VictimKey key_of_heir(const std::vector<std::uint32_t>& removed) {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(3);
  for (const std::uint32_t index : {1U, 2U}) {
    learner.set_time(1000.0 * index);
    learner.kept({.index = index, .has_state = true, .key = index, .depth_blocks = 4, .prompt = {.blocks = 4}});
  }
  learner.set_time(2001);
  for (const std::uint32_t index : removed) learner.removed(index, 0);
  learner.check_invariants();
  return policy->key(leaf_with_state(0));
}

/// The key of the end of a conversation after the next prompt, of session `next`, did not continue it.
VictimKey key_of_end_before(std::uint64_t next) {
  constexpr std::uint64_t first = 7;
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(2);
  for (const std::uint32_t index : {0U, 1U}) {
    learner.set_time(1000.0 * (index + 1));
    learner.kept({.index = index,
                  .has_state = true,
                  .key = index + 1,
                  .depth_blocks = 4,
                  .prompt = {.blocks = 4, .hint = {.session = index == 0 ? first : next}}});
  }
  learner.set_time(2001);
  learner.check_invariants();
  return policy->key(leaf_with_state(0));
}

/// The key of an end `age_s` seconds after it was kept.
VictimKey key_of_idle_end(double expected_idle_s, double age_s) {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(1);
  learner.kept({.index = 0,
                .has_state = true,
                .key = 1,
                .depth_blocks = 4,
                .prompt = {.blocks = 4, .hint = {.expected_idle_s = expected_idle_s}}});
  learner.set_time(age_s);
  return policy->key(leaf_with_state(0));
}

}  // namespace

TEST_CASE("for hix, an end that is expected to stay idle is worth less until then, the less the longer it will take") {
  CHECK(key_of_idle_end(1000, 0) < key_of_idle_end(100, 0));
  CHECK(key_of_idle_end(100, 0) < key_of_idle_end(0, 0));
  CHECK(key_of_idle_end(1000, 10) < key_of_idle_end(1000, 500));
  CHECK(key_of_idle_end(1000, 1001) == key_of_idle_end(0, 1001));
}

TEST_CASE("hix expects no hits of a candidate whose position is not known and that inherited nothing") {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(3);
  const auto hopeless = [&] {
    learner.check_invariants();
    std::vector<bool> answers;
    for (const std::uint32_t index : {0U, 1U, 2U, 3U}) answers.push_back(learner.has_no_expected_hits(index));
    return answers;
  };
  CHECK(hopeless() == std::vector{true, true, true, true});
  learner.kept({.index = 1, .has_state = true, .key = 1, .depth_blocks = 4, .prompt = {.blocks = 4}});
  learner.kept(
      {.index = 2, .has_state = true, .key = 2, .depth_blocks = 2, .at = KeptAt::rung, .prompt = {.blocks = 4}});
  CHECK(hopeless() == std::vector{true, false, false, true});
  // An end that loses its state is still where its prompt will hit; a rung is not.
  learner.lost_state(1);
  learner.lost_state(2);
  CHECK(hopeless() == std::vector{true, false, true, true});
  learner.removed(1, 0);
  CHECK(hopeless() == std::vector{false, true, true, true});
  CHECK(VictimKey::from(0, 1) < policy->key(leaf_with_state(0)));
  CHECK(policy->key(leaf_with_state(1)) == VictimKey::from(0, 1));
  learner.cleared();
  CHECK(hopeless() == std::vector{true, true, true, true});
}

TEST_CASE("for hix, an end that its conversation has left ranks below one that may go on") {
  const VictimKey unknown = key_of_end_before(0);
  CHECK(key_of_end_before(7) < unknown);
  CHECK(key_of_end_before(8) == unknown);
}

TEST_CASE(
    "for gdsf, the state of a fork is evicted after those that one continuation needs, however often they were used") {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::gdsf);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(3);
  for (const std::uint32_t index : {0U, 1U, 2U}) learner.kept({.index = index, .has_state = true});
  for (int use = 0; use < 100; ++use) learner.used(1);
  const auto with_children = [](std::uint32_t index, std::uint32_t children, std::int64_t end_tokens) {
    return VictimFacts{.index = index,
                       .used_tick = 3 - index,
                       .has_state = true,
                       .children = children,
                       .segment_tokens = 10,
                       .end_tokens = end_tokens};
  };
  CHECK(policy->key(with_children(0, 1, 10)) < policy->key(with_children(1, 1, 100)));
  CHECK(policy->key(with_children(1, 1, 100)) < policy->key(with_children(0, 2, 10)));
  // Among forks the one goes first that was used last before the others.
  CHECK(policy->key(with_children(2, 2, 10)) < policy->key(with_children(0, 3, 10)));
  // The state of a fork sets no clock.
  const VictimKey before = policy->key(with_children(2, 1, 10));
  learner.chosen(with_children(1, 2, 100));
  learner.lost_state(2);
  learner.kept({.index = 2, .has_state = true});
  CHECK(policy->key(with_children(2, 1, 10)) == before);
  learner.check_invariants();
}

TEST_CASE("a state that gdsf keeps after a victim ranks above an equal one from before") {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::gdsf);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(3);
  for (const std::uint32_t index : {0U, 1U}) learner.kept({.index = index, .has_state = true});
  CHECK(policy->key(leaf_with_state(0)) == policy->key(leaf_with_state(1)));
  learner.chosen(leaf_with_state(0));
  learner.removed(0, LearningPolicy::no_heir);
  learner.kept({.index = 2, .has_state = true});
  CHECK(policy->key(leaf_with_state(1)) < policy->key(leaf_with_state(2)));
  learner.check_invariants();
}

TEST_CASE("a flood of prompts does not make hix forget the prompts of a tenant with a floor") {
  for (const double floor : {0.0, 0.5}) {
    CAPTURE(floor);
    constexpr std::uint32_t prompts = 30, of_quiet = 4;
    test::PlainTenants tenants({0, floor});
    const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix, {.positions = 8});
    LearningPolicy& learner = *policy->learning();
    learner.set_tenants(tenants);
    learner.reserve(prompts);
    for (std::uint32_t index = 0; index < prompts; ++index) {
      tenants.account.push_back(0);
      learner.set_time(index);
      for (int time = 0; time < 2; ++time) {  // the second time its tenant has a quota
        learner.kept({.index = index, .has_state = true, .key = index + 1, .depth_blocks = 1, .prompt = {.blocks = 1}});
        learner.removed(index, LearningPolicy::no_heir);
        tenants.account[index] = index < of_quiet;
      }
    }
    learner.check_invariants();
    for (PositionKey key = 1; key <= of_quiet; ++key)
      CHECK(learner.looked_up({.keys = {&key, 1}, .blocks = 1}).repeat == (floor > 0));
  }
}

TEST_CASE("of several that are gone, hix lets their heir inherit the one used last, in whatever order they went") {
  const VictimKey last = key_of_heir({2});
  CHECK(key_of_heir({1}) < last);
  CHECK(key_of_heir({1, 2}) == last);
  CHECK(key_of_heir({2, 1}) == last);
}

TEST_CASE("among states of equal worth hix evicts the most recent, among worthless ones the least recent") {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(3);
  for (const std::uint32_t index : {0U, 1U})
    learner.kept({.index = index, .has_state = true, .key = index + 1, .depth_blocks = 4, .prompt = {.blocks = 4}});
  const auto key = [&](std::uint32_t index, std::uint64_t used_tick) {
    VictimFacts facts = leaf_with_state(index);
    facts.used_tick = used_tick;
    return policy->key(facts);
  };
  CHECK(key(1, 8) < key(0, 7));
  CHECK(key(2, 7) < key(2, 8));
  CHECK(key(2, 8) < key(1, 8));
}

TEST_CASE("of two positions of one class hix values the one higher that was hit more often") {
  const std::shared_ptr<EvictionPolicy> policy = make_eviction_policy(EvictionOrder::hix);
  LearningPolicy& learner = *policy->learning();
  learner.reserve(2);
  double now_s = 0;
  const auto keep = [&](std::uint32_t index) {
    learner.kept({.index = index, .has_state = true, .key = index + 1, .depth_blocks = 1, .prompt = {.blocks = 1}});
  };
  const auto hit = [&](std::uint32_t index, double wait_s) {
    learner.set_time(now_s += wait_s);
    const std::array keys = {PositionKey{index + 1}};
    static_cast<void>(learner.looked_up({.keys = keys, .blocks = 2}));
  };
  const std::array rarely_and_often = {0U, 1U};
  for (const std::uint32_t index : rarely_and_often) keep(index);
  for (int use = 0; use < 8; ++use) hit(0, 500);
  for (int use = 0; use < 40; ++use) hit(1, use < 39 ? 1 : 0);
  hit(0, 0);  // both were used just now, more often than classes tell apart
  CHECK(policy->key(leaf_with_state(0)) < policy->key(leaf_with_state(1)));
}
