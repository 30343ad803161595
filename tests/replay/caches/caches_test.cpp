// SPDX-License-Identifier: Apache-2.0
// What holds for every index.
#include <stateport/core/model/error.hpp>

#include "caches/checkpoint_mode.hpp"
#include "caches/slots_cache.hpp"
#include "caches/tree_cache.hpp"
#include "model_cache.hpp"
#include "random.hpp"
#include "served_request.hpp"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::LostHit;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

constexpr std::array modes = {CheckpointMode::every, CheckpointMode::last, CheckpointMode::branch};

/// Prompts over a small alphabet, so that prefixes are shared and left at every depth; 126 different ones.
Blocks random_prompt(Random& random) {
  Blocks blocks(static_cast<std::size_t>(random.between(0, 6)));
  for (BlockIdentity& block : blocks) block = static_cast<BlockIdentity>(random.between(1, 2));
  return blocks;
}

}  // namespace

TEST_CASE_TEMPLATE("an unlimited cache finds what the model of whole prefixes finds", Cache, SlotsCache, TreeCache) {
  for_each_seed(100, [](Random& random, std::uint64_t) {
    const CheckpointMode mode = modes[static_cast<std::size_t>(random.between(0, 2))];
    Cache cache({.blocks = 126, .slots = 126, .block_size_tokens = block_size});
    ModelCache model(mode, block_size);
    for (int request = 0; request < 100; ++request) {
      const Blocks blocks = random_prompt(random);
      const std::int64_t extra = blocks.empty() ? 1 : random.between(0, block_size - 1);
      const auto expected = model.serve(blocks, static_cast<std::int64_t>(blocks.size()) * block_size + extra);
      const Hit hit = serve(cache, mode, blocks, extra);
      REQUIRE(hit.matched_blocks == expected.matched_blocks);
      REQUIRE(hit.hit_blocks == expected.hit_blocks);
      REQUIRE(hit.slot.valid() == (hit.hit_blocks > 0));
      cache.check_invariants();
    }
    CHECK(cache.counts().state_evictions == 0);
  });
}

TEST_CASE_TEMPLATE("a small cache keeps its books, whatever does not fit", Cache, SlotsCache, TreeCache) {
  for_each_seed(150, [](Random& random, std::uint64_t) {
    const CheckpointMode mode = modes[static_cast<std::size_t>(random.between(0, 2))];
    const std::int32_t slots = random.between32(1, 6);
    const std::int32_t pool = random.between32(1, 30);
    Cache cache({.blocks = pool, .slots = slots, .block_size_tokens = block_size});
    std::int64_t placed_states = 0;
    for (int request = 0; request < 100; ++request) {
      const Blocks blocks = random_prompt(random);
      std::vector<Checkpoint> placed;
      const Hit hit = serve(cache, mode, blocks, 1, &placed);
      REQUIRE(hit.hit_blocks <= hit.matched_blocks);
      REQUIRE(hit.lost.has_value() == (hit.hit_blocks < hit.matched_blocks));
      for (std::size_t i = 0; i < placed.size(); ++i) {
        REQUIRE(placed[i].slot != hit.slot);
        REQUIRE((i == 0 || placed[i - 1].depth_blocks < placed[i].depth_blocks));
      }
      placed_states += static_cast<std::int64_t>(placed.size());
      cache.check_invariants();
      const CacheCounts counts = cache.counts();
      REQUIRE(counts.resident_states == placed_states - counts.state_evictions);
      REQUIRE(counts.resident_states <= slots);
      REQUIRE(counts.resident_blocks <= pool);
    }
  });
}

TEST_CASE_TEMPLATE("a state that is only passed over gets no younger, so it goes first", Cache, SlotsCache, TreeCache) {
  Cache cache({.blocks = 100, .slots = 3, .block_size_tokens = block_size});
  const CheckpointMode last = CheckpointMode::last;
  serve(cache, last, {1}, 1);                            // slots: 1
  serve(cache, last, {5}, 1);                            // 1, 5
  serve(cache, last, {1, 2}, 1);                         // 1, 5, 12; uses the state after 1
  CHECK(serve(cache, last, {1, 2}, 1).hit_blocks == 2);  // passes over it
  serve(cache, last, {5}, 1);
  serve(cache, last, {6}, 1);
  CHECK(serve(cache, last, {1, 9}, 1).lost == LostHit::evicted);
}

TEST_CASE_TEMPLATE("a prompt longer than the pool is cached as far as it goes", Cache, SlotsCache, TreeCache) {
  Cache cache({.blocks = 3, .slots = 9, .block_size_tokens = block_size});
  std::vector<Checkpoint> placed;
  serve(cache, CheckpointMode::every, {1, 2, 3, 4, 5}, 1, &placed);
  CHECK(placed.size() == 3);
  CHECK(cache.counts().uncached_blocks == 2);
  CHECK(cache.counts().dropped_checkpoints == 2);
  CHECK(serve(cache, CheckpointMode::every, {1, 2, 3, 4, 5}, 1).hit_blocks == 3);
}

TEST_CASE_TEMPLATE("on shortage the deepest states are kept", Cache, SlotsCache, TreeCache) {
  Cache cache({.blocks = 30, .slots = 2, .block_size_tokens = block_size});
  std::vector<Checkpoint> placed;
  serve(cache, CheckpointMode::every, {1, 2, 3, 4, 5}, 1, &placed);
  REQUIRE(placed.size() == 2);
  CHECK(placed[0].depth_blocks == 4);
  CHECK(placed[1].depth_blocks == 5);
  CHECK(cache.counts().dropped_checkpoints == 3);
}

TEST_CASE_TEMPLATE("the cache refuses sizes that make no sense", Cache, SlotsCache, TreeCache) {
  using stateport::InvalidArgument;
  CHECK_THROWS_AS(Cache({.blocks = 0, .slots = 1}), InvalidArgument);
  CHECK_THROWS_AS(Cache({.blocks = 1, .slots = 0}), InvalidArgument);
  CHECK_THROWS_AS(Cache({.blocks = 1, .slots = 1, .block_size_tokens = 0}), InvalidArgument);
}
