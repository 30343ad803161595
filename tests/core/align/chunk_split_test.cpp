// SPDX-License-Identifier: Apache-2.0
#include "align/chunk_split.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

using namespace stateport;
using detail::least_chunk;
using detail::split_chunk;
using test::Random;

TEST_CASE("every boundary that the chunks of a prompt pass is the end of a chunk") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 10);
    const std::int64_t prompt = random.between(1, 60);
    const bool drops_block = random.chance(50);
    // A request that is resumed has sampled tokens before.
    const std::int64_t total = prompt + (random.chance(50) ? 0 : random.between(1, 30));
    const std::int64_t prefill = std::max(prompt, total - 1);
    std::int64_t start = random.chance(50) ? 0 : random.between(0, prefill - 1);
    for (int attempt = 0; start < prefill; ++attempt) {
      const std::int64_t tokens = attempt < 20 ? random.between(0, 15) : total;
      const std::int64_t allowed = std::min(tokens, total - start);
      const std::int64_t run = split_chunk({start, allowed, prompt, total, drops_block}, block);
      REQUIRE(run >= 0);
      REQUIRE(run <= allowed);
      const std::int64_t least = least_chunk({start, allowed, prompt, total, drops_block}, block);
      REQUIRE(split_chunk({start, least, prompt, total, drops_block}, block) > 0);
      REQUIRE(split_chunk({start, least - 1, prompt, total, drops_block}, block) == 0);
      const std::int64_t end = start + run;
      REQUIRE((run == 0 || end >= prefill || end % block == 0));
      if (start % block != 0) REQUIRE(end <= floor_to(start, block) + block);
      // A chunk that ends the prefill may not jump over the deepest boundary that the same tokens hit: all but their
      // last token count, or a draft model drops a block of all of them.
      std::int64_t last = 0;
      for (std::int64_t boundary = 0; boundary <= total; boundary += block)
        if (drops_block ? boundary + block <= total : boundary < total) last = boundary;
      if (start < last) REQUIRE(end <= std::max(last, start));
      start = end;
      REQUIRE(attempt < 100);
    }
  });
}

TEST_CASE("prefill stops where the same prompt can hit") {
  const auto run = [](std::int64_t start, std::int64_t tokens, std::int64_t total, bool drops_block = false) {
    return split_chunk({start, tokens, 32, total, drops_block}, 16);
  };
  CHECK(run(0, 32, 32) ==
        16);  // a prompt that ends on a boundary hits the one before: its last token is computed anyway
  CHECK(run(16, 16, 32) == 16);
  CHECK(run(0, 33, 33) == 32);  // a token more, and it hits that boundary
  CHECK(run(0, 33, 33, true) == 16);
  CHECK(run(0, 32, 32, true) == 16);
}

TEST_CASE("a resumed request stops on the grid until all but its last token are computed") {
  const auto run = [](std::int64_t start, std::int64_t tokens) {
    return split_chunk({start, tokens, 20, 60, false}, 16);
  };
  CHECK(run(16, 20) == 16);  // past the prompt, before the end of the sampled tokens
  CHECK(run(32, 10) == 0);
  CHECK(run(32, 28) == 16);
  CHECK(run(48, 12) == 12);
  CHECK(run(59, 1) == 1);
}

TEST_CASE("a decode step is never split") {
  CHECK(split_chunk({.start = 40, .tokens = 4, .prompt = 33, .total = 41}, 16) == 4);
  CHECK(split_chunk({.start = 33, .tokens = 4, .prompt = 33, .total = 33}, 16) == 4);
}
