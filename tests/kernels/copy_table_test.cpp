// SPDX-License-Identifier: Apache-2.0
#include "copy_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "random.hpp"

using stateport::kernels::append_tiles;
using stateport::kernels::Tile;

TEST_CASE("tiles cover a tensor once, stay within their size and are balanced") {
  stateport::test::for_each_seed(2000, [](stateport::test::Random& random, std::uint64_t) {
    const auto elements = static_cast<std::uint64_t>(random.between(1, random.chance(50) ? 100 : 3'000'000));
    const std::size_t element_bytes = std::size_t{1} << random.between(0, 3);
    const std::size_t tile_bytes_max = std::size_t{1024} << random.between(0, 10);
    std::vector<Tile> tiles;
    append_tiles(tiles, 7, elements, element_bytes, tile_bytes_max);
    std::uint64_t next = 0;
    const auto bad = std::ranges::find_if(tiles, [&](const Tile& tile) {
      const bool starts_where_the_last_ended = tile.first_element == next;
      next += tile.elements;
      return !(starts_where_the_last_ended && tile.tensor == 7 && tile.first_element % 16 == 0 && tile.elements >= 1 &&
               tile.elements * element_bytes <= tile_bytes_max && tile.elements <= tiles.front().elements);
    });
    REQUIRE(bad == tiles.end());
    REQUIRE(next == elements);
    REQUIRE(tiles.size() <= (elements * element_bytes + tile_bytes_max - 1) / tile_bytes_max);
  });
}
