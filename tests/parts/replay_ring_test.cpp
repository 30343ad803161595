// SPDX-License-Identifier: Apache-2.0
#include "replay_ring.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace stateport;
using test::Random;
using test::replay_ring;
using test::ReplayRing;

TEST_CASE("the replay ring counts the steps since the last stored state") {
  test::for_each_seed(2000, [](Random& random, std::uint64_t) {
    const std::int64_t ring = random.between(1, 8);
    const std::int64_t align = random.chance(50) ? 0 : random.between(1, 12);
    std::int64_t base = random.between(0, 20);
    std::int64_t held = 0;  // steps in the ring
    for (std::int64_t n = base; n < 60; ++n) {
      if (align > 0 && n % align == 0 && n > base) base = n, held = 0;
      const ReplayRing got = replay_ring(n + 1, 1, base, ring, align);
      REQUIRE(got.position == held % ring);
      REQUIRE(got.flush == (held % ring == ring - 1 || (align > 0 && (n + 1) % align == 0)));
      ++held;
    }
  });
  CHECK(replay_ring(10, 1, 20, 4, 0).flush);
}
