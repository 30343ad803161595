// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/prefill_checkpoint.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace stateport;
using test::Random;

namespace {

/// The column of token number n (1, 2, …), counted one by one.
std::int32_t column_of(std::int64_t n, std::int64_t block) {
  std::int32_t column = -1;
  for (std::int64_t token = 1; token <= n; ++token)
    if ((token - 1) % block == 0) ++column;
  return column;
}

}  // namespace

TEST_CASE("the position of a checkpoint leaves the tokens that a hit of the same prompt drops") {
  CHECK(prefill_checkpoint_position(31, 16, false) == 16);
  CHECK(prefill_checkpoint_position(32, 16, false) == 16);
  CHECK(prefill_checkpoint_position(32, 16, false, true) == 32);
  CHECK(prefill_checkpoint_position(31, 16, true) == 0);
  CHECK(prefill_checkpoint_position(32, 16, true) == 16);
  CHECK(prefill_checkpoint_position(32, 16, true, true) == 16);
  CHECK(prefill_checkpoint_position(33, 16, true) == 16);
  CHECK(prefill_checkpoint_position(3, 16, true) == 0);
}

TEST_CASE("a checkpoint inside a chunk lies on the hash grid and in a column that the chunk passes") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    PrefillCheckpointQuery chunk{.start = random.between(0, 40),
                                 .hash_block = random.between(1, 6),
                                 .state_block = random.between(1, 10),
                                 .alignment = random.between(0, 4)};
    chunk.end = chunk.start + random.between(0, 40);
    chunk.position = prefill_checkpoint_position(chunk.end, chunk.hash_block, random.chance(50), random.chance(50));
    REQUIRE(chunk.position % chunk.hash_block == 0);
    const PrefillCheckpoint checkpoint = prefill_checkpoint(chunk);
    if (!checkpoint.valid()) {
      REQUIRE(checkpoint == PrefillCheckpoint{});
      return;
    }
    REQUIRE(chunk.start + checkpoint.offset == chunk.position);
    REQUIRE(checkpoint.offset > 0);
    REQUIRE(checkpoint.offset % chunk.alignment == 0);
    REQUIRE(checkpoint.column == column_of(chunk.end, chunk.state_block) - 1);
    REQUIRE(checkpoint.column > column_of(chunk.start, chunk.state_block));
  });
}
