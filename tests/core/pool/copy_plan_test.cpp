// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/copy_plan.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("a copy plan may skip, shift in place and cross stores") {
  const std::vector<SlotCopy> plan = {
      SlotCopy::whole(0, 1), SlotCopy::whole(-1, 2), {3, 3, 1, 4}, SlotCopy::whole(0, -1)};
  CHECK_NOTHROW(validate(plan, 5, 5, true));
}

TEST_CASE("a copy plan is refused for slots out of range, double writes and chains") {
  const auto refused = [](std::vector<SlotCopy> plan, bool same_store) {
    CHECK_THROWS_AS(validate(plan, 4, 3, same_store), InvalidArgument);
  };
  refused({SlotCopy::whole(4, 0)}, false);
  refused({SlotCopy::whole(0, 3)}, false);
  refused({{0, 1, -1, 0}}, false);
  refused({{0, 1, 0, 4}}, false);
  refused({SlotCopy::whole(0, 1), SlotCopy::whole(2, 1)}, false);
  refused({SlotCopy::whole(0, 1), SlotCopy::whole(1, 2)}, true);
  refused({{2, 2, 1, 0}, SlotCopy::whole(1, 0)}, true);
  const std::vector<SlotCopy> chain = {SlotCopy::whole(0, 1), SlotCopy::whole(1, 2)};
  CHECK_NOTHROW(validate(chain, 4, 3, false));
}
