// SPDX-License-Identifier: Apache-2.0
// How the teams of a GPU launch share out rows and tiles.
#include "gpu/work_share.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace stateport;

TEST_CASE("a list of work knows how many rows with work lie before a row") {
  constexpr std::uint32_t capacity = 200;
  test::for_each_seed(200, [](test::Random& random, std::uint64_t) {
    kernels::WorkList<std::int32_t, capacity> list{};
    std::uint32_t before = 0;
    const int percent = random.chance(20) ? 100 : 40;
    std::vector<std::uint32_t> expected;
    for (std::uint32_t row = 0; row < capacity; ++row) {
      expected.push_back(before);
      if (!random.chance(percent)) continue;
      list.has_work[row / 32] |= 1u << row % 32;
      ++before;
    }
    for (std::uint32_t row = 0; row < capacity; ++row) REQUIRE(list.before(row) == expected[row]);
    REQUIRE(list.before(capacity) == before);
  });
}
