// SPDX-License-Identifier: Apache-2.0
// This program is linked with a library that is wrong: neither fingerprints nor images tell the types of their tensors.
#include "check.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("the comparison finds that an engine loads images that one of another type left in the folder") {
  for (const std::string_view cache : {"tree", "slots", "align"}) {
    CAPTURE(cache);
    const auto found = find_fault(Fault::untyped_images, cache, 300, {.tiers = true});
    REQUIRE(found);
    MESSAGE("found at seed " << found->seed << ": " << found->reported);
    CHECK(found->shortest.schedule.other_engine == OtherEngine::other_type);
    CHECK(2 * found->causes() <= found->drawn);
  }
}
