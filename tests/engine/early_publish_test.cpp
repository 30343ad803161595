// SPDX-License-Identifier: Apache-2.0
// This program is linked with tiers that are wrong: an image is published before the copy that fills it is done.
#include "check.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("the comparison finds images that are written to files before they are there") {
  for (const std::string_view cache : {"tree", "slots", "align"}) {
    CAPTURE(cache);
    const auto found = find_fault(Fault::early_publish, cache, 300, {.tiers = true});
    REQUIRE(found);
    MESSAGE("found at seed " << found->seed << ": " << found->reported);
    CHECK(2 * found->causes() <= found->drawn);
  }
}
