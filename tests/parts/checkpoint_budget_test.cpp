// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/checkpoint_budget.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace stateport;

TEST_CASE("scratch slots are bounded by tokens and by requests") {
  CHECK(scratch_slots_bound(2048, 256, 4) == 8);
  CHECK(scratch_slots_bound(2048, 256, 2) == 6);
  CHECK(scratch_slots_bound(2049, 256, 64) == 9);
  CHECK(scratch_slots_bound(1, 256, 1) == 1);
  CHECK(scratch_slots_bound(INT64_MAX, 1, 100) == 300);
  CHECK_THROWS_AS(static_cast<void>(scratch_slots_bound(0, 256, 1)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(scratch_slots_bound(1, 0, 1)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(scratch_slots_bound(1, 1, 0)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(scratch_slots_bound(INT64_MAX, 1, INT32_MAX)), InvalidArgument);
}

TEST_CASE("a budget gives the slots left beside the scratch slots, or names the bytes that it lacks") {
  CHECK(slots_for_budget(1 << 30, 1 << 20, 8) == 1016);
  CHECK(slots_for_budget(100, 100, 0) == 1);
  CHECK(slots_for_budget(10'000'000, 1234, 3) == 8100);
  CHECK(slots_for_budget(SIZE_MAX, 1, 0) > 0);
  try {
    static_cast<void>(slots_for_budget(199, 100, 1));
    FAIL("not refused");
  } catch (const OutOfMemory& error) {
    CHECK(error.required_bytes() == 200);
  }
  CHECK_THROWS_AS(static_cast<void>(slots_for_budget(0, 100, 0)), OutOfMemory);
  CHECK_THROWS_AS(static_cast<void>(slots_for_budget(5, SIZE_MAX / 2, 100)), OutOfMemory);
  CHECK_THROWS_AS(static_cast<void>(slots_for_budget(100, 0, 0)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(slots_for_budget(100, 1, -1)), InvalidArgument);
}
