// SPDX-License-Identifier: Apache-2.0
// This program is linked with a wrong cache: it publishes and finds blocks of states without checking their content.
#include "check.hpp"

#include <doctest/doctest.h>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("the comparison finds blocks that the older chunk split poisons") {
  const auto found = find_fault(Fault::older_split, "align", 300);
  REQUIRE(found);
  MESSAGE("found at seed " << found->seed << ": " << found->reported);
  CHECK(found->causes() <= 4);
}
