// SPDX-License-Identifier: Apache-2.0
// How the teams of a GPU launch share out rows and tiles.
#include "gpu/work_share.hpp"

#include "gpu/tile_part.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace stateport;

TEST_CASE("the parts of a tile follow each other, begin at multiples of 16 and make up the tile") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t) {
    const auto elements = static_cast<std::uint32_t>(random.between(0, random.chance(50) ? 100 : 32768));
    const auto parts = static_cast<std::uint32_t>(random.between(1, 9));
    std::uint32_t next = 0;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const kernels::TilePart range = kernels::part_of(elements, parts, part);
      if (range.elements == 0) continue;
      REQUIRE(range.first == next);
      REQUIRE(range.first % 16 == 0);
      // A team has lanes for an equal share, rounded up to 16.
      REQUIRE(range.elements <= (elements / parts + 15) / 16 * 16 + parts);
      next += range.elements;
    }
    REQUIRE(next == elements);
  });
}

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
