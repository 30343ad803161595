// SPDX-License-Identifier: Apache-2.0
#include "copy_table.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using stateport::kernels::append_tiles;
using stateport::kernels::TensorRoute;
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

TEST_CASE("slots are found from bases in either half of the address range") {
  stateport::test::for_each_seed(200, [](stateport::test::Random& random, std::uint64_t) {
    // Up to 2^30 slots of up to 2^31 bytes: offsets far beyond 32 bits, that end below the top of the range.
    const std::uintptr_t half = random.chance(50) ? std::uintptr_t{1} << 63 : 0;
    const auto base = half + static_cast<std::uintptr_t>(random.between(1, std::int64_t{1} << 40));
    const std::int64_t stride = random.between(1, std::int64_t{1} << 31);
    const std::int32_t slot = random.between32(0, 1 << 30);
    TensorRoute route;
    route.src = reinterpret_cast<const std::byte*>(base);
    route.dst = reinterpret_cast<std::byte*>(base + 64);
    route.src_stride_bytes = stride;
    route.dst_stride_bytes = stride + 8;
    const auto offset = [&](std::int64_t bytes) {
      return static_cast<std::uintptr_t>(bytes) * static_cast<std::uintptr_t>(slot);
    };
    REQUIRE(reinterpret_cast<std::uintptr_t>(route.src_of(slot)) == base + offset(stride));
    REQUIRE(reinterpret_cast<std::uintptr_t>(route.dst_of(slot)) == base + 64 + offset(stride + 8));
  });
}
