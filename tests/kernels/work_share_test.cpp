// SPDX-License-Identifier: Apache-2.0
// How the teams of a GPU launch share out rows and tiles, without any team.
#include "gpu/work_share.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace stateport;
using kernels::tile_parts;

TEST_CASE("all parts of all items are shared out once, and no team has more than a part more than another") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t) {
    const auto teams = static_cast<std::uint32_t>(random.between(1, random.chance(50) ? 9 : 600));
    const auto items = static_cast<std::uint32_t>(random.between(0, random.chance(50) ? 20 : 3000));
    CAPTURE(teams);
    CAPTURE(items);
    std::vector<std::uint32_t> taken(std::size_t{items} * tile_parts);
    std::vector<std::uint32_t> parts(teams);
    for (std::uint32_t rank = 0; rank < teams; ++rank)
      kernels::for_each_share(rank, teams, items, [&](std::uint32_t item, std::uint32_t first, std::uint32_t end) {
        REQUIRE(item < items);
        REQUIRE(first < end);
        REQUIRE(end <= tile_parts);
        for (std::uint32_t part = first; part < end; ++part) ++taken[std::size_t{item} * tile_parts + part];
        parts[rank] += end - first;
      });
    REQUIRE(std::ranges::all_of(taken, [](std::uint32_t times) { return times == 1; }));
    const auto [fewest, most] = std::ranges::minmax(parts);
    REQUIRE(most - fewest <= 1);
  });
}

TEST_CASE("the parts of a tile follow each other, begin at whole words and make up the tile") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t) {
    const kernels::Tile tile{.tensor = 3,
                             .elements = static_cast<std::uint32_t>(random.between(1, 32768)),
                             .first_element = 16 * static_cast<std::uint64_t>(random.between(0, 1 << 20))};
    std::uint64_t next = tile.first_element;
    for (std::uint32_t first = 0; first < tile_parts;) {
      const auto end = static_cast<std::uint32_t>(random.between(first + 1, tile_parts));
      const kernels::Tile part = kernels::parts_of(tile, first, end);
      REQUIRE(part.tensor == tile.tensor);
      REQUIRE(part.first_element == next);
      REQUIRE(part.first_element % 16 == 0);
      next += part.elements;
      first = end;
    }
    REQUIRE(next == tile.first_element + tile.elements);
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
