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
      const auto failure = check_seed(seed, cache, counts);
      if (failure) FAIL(*failure);
    });
    // The schedules are worth their time: states are found, and there are too few slots.
    if (cache == "none") continue;
    CHECK(counts.hit_tokens * 10 > counts.lookup_tokens);
    CHECK(counts.evictions > 300);
  }
}
