// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/speculative_rules.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

using namespace stateport;
using test::Random;

TEST_CASE("the tracked step is the last boundary among the accepted tokens") {
  test::for_each_seed(10000, [](Random& random, std::uint64_t) {
    const std::int32_t draft_tokens = random.between32(1, 8);
    const std::int64_t row = random.between(0, 5);
    const std::int32_t accepted = random.between32(0, draft_tokens);
    std::vector<std::int32_t> index(static_cast<std::size_t>(draft_tokens), -1);
    std::int32_t node = 0;
    for (std::int32_t i = 0; i < accepted; ++i) {
      index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row) * draft_tokens + node;
      node = std::min(node + random.between32(1, 2), draft_tokens - 1);
    }
    const std::int64_t seq_len = random.between(0, 40);
    const std::int64_t interval = random.between(1, 9);
    std::int32_t expected = no_step;
    for (std::int32_t i = 1; i <= accepted; ++i)
      if ((seq_len + i) % interval == 0)
        expected = index[static_cast<std::size_t>(i - 1)] - static_cast<std::int32_t>(row) * draft_tokens;
    REQUIRE(tracked_step(index.data(), accepted, row, draft_tokens, seq_len, interval) == expected);
    const std::int32_t last = last_accepted_step(index.data(), accepted, row, draft_tokens);
    REQUIRE(last == (accepted == 0 ? no_step
                                   : index[static_cast<std::size_t>(accepted - 1)] -
                                         static_cast<std::int32_t>(row) * draft_tokens));
  });
  CHECK(last_accepted_step(nullptr, 0, 0, 4) == no_step);
  CHECK(last_accepted_step(nullptr, 5, 0, 4) == no_step);
}

TEST_CASE("the checkpoint depth lies on the grid or at the branching point") {
  test::for_each_seed(10000, [](Random& random, std::uint64_t) {
    ExtendChunk extend{.prefix = random.between(0, 30),
                       .extend = random.between(0, 60),
                       .chunk = random.between(1, 8),
                       .page = random.between(1, 8),
                       .branching = random.between(-1, 90)};
    const std::int64_t grid = std::lcm(extend.chunk, extend.page);
    REQUIRE(checkpoint_grid(extend.page, extend.chunk) == grid);
    const PrefillDepth got = prefill_checkpoint_depth(extend);
    REQUIRE(got.track == (extend.extend >= grid));
    if (!got.track) return;
    REQUIRE(got.depth > extend.prefix);
    REQUIRE(got.depth <= extend.prefix + extend.extend);
    REQUIRE((got.depth == extend.branching || (got.depth - extend.prefix) % grid == 0));
    REQUIRE((got.depth - extend.prefix) % extend.chunk == 0);
    REQUIRE(got.kernel_tokens >= got.depth);
  });
}
