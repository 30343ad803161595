// SPDX-License-Identifier: Apache-2.0
// This program is linked with a prefix tree that is wrong: a split moves the state to its upper part.
#include "check.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("the comparison finds states that a split moved to its upper part") {
  for (const std::string_view cache : {"tree", "tree-copy"}) {
    CAPTURE(cache);
    const auto found = find_fault(Fault::moved_state, cache, 300);
    REQUIRE(found);
    MESSAGE("found at seed " << found->seed << ": " << found->reported);
    CHECK(found->causes() <= 4);
  }
}

TEST_CASE("the tree's own recount finds them too") {
  bool found = false;
  for (std::uint64_t seed = 1; seed <= 300 && !found; ++seed) {
    const auto failure = difference(draw_problem(seed), "tree");
    found = failure && failure->find("a slot holds the state of another path") != std::string::npos;
  }
  CHECK(found);
}
