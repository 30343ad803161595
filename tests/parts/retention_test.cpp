// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/retention.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace stateport;
using test::Random;

TEST_CASE("the retention mask keeps the interval's columns and the named boundaries") {
  test::for_each_seed(5000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 8);
    const std::int64_t start = random.between(0, 6);
    RetentionPolicy policy;
    if (random.chance(80)) policy.interval_tokens = random.between(0, 40);
    std::vector<std::int64_t> boundaries(static_cast<std::size_t>(random.between(0, 4)));
    for (std::int64_t& boundary : boundaries) boundary = random.between(0, 120);
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(random.between(0, 12)), 7);
    fill_retention_mask(policy, block, start, boundaries, keep);
    const bool all = !policy.interval_tokens || (*policy.interval_tokens > 0 && *policy.interval_tokens < 2 * block);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const std::int64_t end = (start + static_cast<std::int64_t>(i) + 1) * block;
      bool expected = all;
      if (!all && *policy.interval_tokens > 0) expected = end % (*policy.interval_tokens / block * block) == 0;
      for (const std::int64_t boundary : boundaries) expected |= end <= boundary && boundary < end + block;
      REQUIRE(keep[i] == expected);
    }
  });
}
