// SPDX-License-Identifier: Apache-2.0
#include "align/state_hit.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>

using namespace stateport;
using detail::StateHit;
using test::Random;

TEST_CASE("the longest state hit is the last cached column that fits") {
  test::for_each_seed(5000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 6);
    const std::int64_t alignment = random.between(1, 20);
    const std::int64_t max_tokens = random.between(0, 60);
    std::set<std::int32_t> cached;
    for (int i = 0; i < 5; ++i) cached.insert(random.between32(0, 20));
    StateHit expected;
    for (const std::int32_t column : cached) {
      const std::int64_t tokens = (column + 1) * block;
      if (tokens <= max_tokens && tokens % alignment == 0) expected = {tokens, column};
    }
    REQUIRE(detail::longest_state_hit(max_tokens, block, alignment,
                                      [&](std::int32_t k) { return cached.contains(k); }) == expected);
  });
}
