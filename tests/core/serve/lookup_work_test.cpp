// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include "instruction_count.hpp"
#include "random.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

using namespace stateport;
using namespace stateport::test;

namespace {

constexpr Namespace stranger = {.salt = "stranger"};
constexpr Namespace asking = {.salt = "asking"};
using Tokens = StateWorld::Tokens;

Tokens random_prompt(Random& random) {
  Tokens tokens(34);
  for (Token& token : tokens) token = random.between32(0, 1 << 20);
  return tokens;
}

RequestCacheOptions options_of(Combination index) {
  RequestCacheOptions options = small(index, host);
  options.hash_seed = 99;
  options.scrub = true;
  return options;
}

/// Instructions of a look-up after `tenant` was served `cached`.
std::optional<std::int64_t> lookup_instructions(Combination index, const Namespace& tenant, const Tokens& cached,
                                                const Tokens& asked) {
  Server server(options_of(index));
  // The memory of the look-up is warm.
  server.cache->abort(server.start({.tokens = cached, .name_space = asking})->request);
  server.move_all();
  server.serve(cached, tenant);
  return instructions_of([&] { static_cast<void>(server.start({.tokens = asked, .name_space = asking})); });
}

}  // namespace

TEST_CASE("a look-up does the same work whether another tenant has the prompt or not") {
  for (const Combination index : every_combination)
    // Not for_each_seed: thousands of seeds would take hours, one step at a time.
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      Random random(seed);
      CAPTURE(static_cast<int>(index));
      const Tokens prompt = random_prompt(random);
      const auto absent = lookup_instructions(index, stranger, random_prompt(random), prompt);
      const auto of_stranger = lookup_instructions(index, stranger, prompt, prompt);
      const auto own = lookup_instructions(index, asking, prompt, prompt);
      if (!absent || !of_stranger || !own) {
        MESSAGE("instructions cannot be counted here");
        return;
      }
      MESSAGE("instructions: absent ", *absent, ", of another tenant ", *of_stranger, ", own ", *own);
      const std::int64_t probes = *absent / 50;  // of hash tables, which have other keys
      CHECK(std::abs(*of_stranger - *absent) <= probes);
      // A hit on the tenant's own prefix takes a different number of instructions, so the count can tell them apart.
      CHECK(std::abs(*own - *absent) > 2 * probes);
    }
}
