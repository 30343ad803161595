// SPDX-License-Identifier: Apache-2.0
// This program is linked with a cache that is wrong: the state that it loads is the one a block before, if there is
// one.
#include "check.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("the comparison finds states that are promoted one block too shallow") {
  for (const std::string_view cache : {"tree", "slots", "align"}) {
    CAPTURE(cache);
    const auto found = find_fault(Fault::shallow_load, cache, 300, {.tiers = true});
    REQUIRE(found);
    MESSAGE("found at seed " << found->seed << ": " << found->reported);
    CHECK(2 * found->causes() <= found->drawn);
  }
}
