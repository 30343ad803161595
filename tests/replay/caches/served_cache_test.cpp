// SPDX-License-Identifier: Apache-2.0
// Rules of every index, served one prompt at a time.
#include "caches/served_cache.hpp"

#include <stateport/core/model/error.hpp>

#include "model_cache.hpp"
#include "random.hpp"
#include "served_request.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::CacheIndex;
using stateport::CheckpointPlacement;
using stateport::InvalidArgument;
using stateport::LostHit;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

constexpr std::array indexes = {CacheIndex::hash, CacheIndex::tree};
constexpr std::array drawn_placements = {CheckpointPlacement::every, CheckpointPlacement::last,
                                         CheckpointPlacement::branch, CheckpointPlacement::rungs};

/// Prompts over a small alphabet, so that prefixes are shared and left at every depth; 126 different ones.
Blocks random_prompt(Random& random) {
  Blocks blocks(static_cast<std::size_t>(random.between(0, 6)));
  for (BlockIdentity& block : blocks) block = static_cast<BlockIdentity>(random.between(1, 2));
  return blocks;
}

ServedCache make_cache(CacheIndex index, std::int64_t blocks, std::int64_t slots,
                       CheckpointPlacement placement = CheckpointPlacement::last) {
  return ServedCache(
      {.index = index, .blocks = blocks, .slots = slots, .block_size_tokens = block_size, .placement = placement});
}

}  // namespace

TEST_CASE("an unlimited cache finds the same as the model of whole prefixes") {
  for_each_seed(100, [](Random& random, std::uint64_t) {
    for (const CacheIndex index : indexes) {
      const CheckpointPlacement placement = drawn_placements[static_cast<std::size_t>(random.between(0, 3))];
      ServedCache cache = make_cache(index, 126 + 6, 126, placement);
      ModelCache model(placement, block_size,
                       index == CacheIndex::tree ? ModelCache::Last::kv_and_state : ModelCache::Last::kv);
      for (int request = 0; request < 100; ++request) {
        const Blocks blocks = random_prompt(random);
        const std::int64_t extra = blocks.empty() ? 1 : random.between(0, block_size - 1);
        const auto expected = model.serve(blocks, static_cast<std::int64_t>(blocks.size()) * block_size + extra);
        const Hit hit = serve(cache, blocks, extra);
        REQUIRE(hit.matched_blocks == expected.matched_blocks);
        REQUIRE(hit.hit_blocks == expected.hit_blocks);
        cache.check_invariants();
      }
      CHECK(cache.counts().state_evictions == 0);
      CHECK(cache.counts().block_evictions == 0);
    }
  });
}

TEST_CASE("a small cache keeps its books, whatever does not fit") {
  for_each_seed(150, [](Random& random, std::uint64_t) {
    for (const CacheIndex index : indexes) {
      const std::int64_t slots = random.between(1, 6);
      const std::int64_t pool = random.between(1, 30);
      ServedCache cache =
          make_cache(index, pool, slots, drawn_placements[static_cast<std::size_t>(random.between(0, 3))]);
      std::int64_t stored_states = 0;
      std::int64_t uncached = 0;
      for (int request = 0; request < 100; ++request) {
        const Blocks blocks = random_prompt(random);
        const Hit hit = serve(cache, blocks, 1);
        REQUIRE(hit.hit_blocks <= hit.matched_blocks);
        REQUIRE(hit.lost.has_value() == (hit.hit_blocks < hit.matched_blocks));
        for (std::size_t i = 0; i < cache.stored().size(); ++i) {
          REQUIRE(cache.stored()[i] != hit.hit_blocks);
          REQUIRE((i == 0 || cache.stored()[i - 1] < cache.stored()[i]));
        }
        stored_states += std::ssize(cache.stored());
        if (std::ssize(blocks) > pool) uncached += std::ssize(blocks);
        cache.check_invariants();
        const CacheCounts counts = cache.counts();
        REQUIRE(counts.resident_states == stored_states - counts.state_evictions);
        REQUIRE(cache.eviction_ages().total() == counts.state_evictions);
        // A tree may keep the slot in which the last request ran.
        REQUIRE(counts.resident_states <= slots + (index == CacheIndex::tree ? 1 : 0));
        REQUIRE(counts.resident_blocks <= pool);
        REQUIRE(counts.uncached_blocks == uncached);
      }
    }
  });
}

TEST_CASE("a prompt longer than the cache is passed by") {
  for (const CacheIndex index : indexes) {
    ServedCache cache = make_cache(index, 3, 9, CheckpointPlacement::every);
    serve(cache, {1, 2, 3, 4, 5}, 1);
    CHECK(cache.stored().empty());
    CHECK(cache.counts().uncached_blocks == 5);
    CHECK(cache.counts().resident_blocks == 0);
    serve(cache, {1, 2, 3}, 1);
    CHECK(cache.counts().resident_blocks == 3);
    CHECK(serve(cache, {1, 2, 3}, 1).hit_blocks == 3);
  }
}

TEST_CASE("lost hits have their reasons, by block hash") {
  ServedCache cache = make_cache(CacheIndex::hash, 100, 2);
  CHECK(!serve(cache, {1, 2, 3}, 1).lost);
  CHECK(serve(cache, {1, 2, 4}, 1).lost == LostHit::no_checkpoint);
  CHECK(serve(cache, {1, 2, 3}, 0).lost == LostHit::too_few_tokens);
  serve(cache, {7}, 1);
  serve(cache, {8}, 1);
  CHECK(serve(cache, {1, 2, 4}, 1).lost == LostHit::evicted);
}

TEST_CASE("lost hits have their reasons, in a tree") {
  ServedCache cache = make_cache(CacheIndex::tree, 100, 3);
  CHECK(!serve(cache, {1, 2}, 1).lost);                           // states: 12
  CHECK(serve(cache, {1, 4}, 1).lost == LostHit::no_checkpoint);  // 12, 14
  CHECK(serve(cache, {1, 2, 3}, 1).hit_blocks == 2);              // 12, 14, 123
  serve(cache, {7}, 1);                                           // 12, 123, 7
  serve(cache, {8}, 1);                                           // 123, 7, 8: 12 is no leaf, its KV stays
  CHECK(serve(cache, {1, 2, 9}, 1).lost == LostHit::evicted);
  CHECK(serve(cache, {8}, 0).lost == LostHit::too_few_tokens);
}

TEST_CASE("a leaf of a tree that loses its state loses its KV too") {
  ServedCache cache = make_cache(CacheIndex::tree, 100, 1);
  serve(cache, {1, 2, 3}, 1);
  serve(cache, {7}, 1);
  CHECK(cache.counts().state_evictions == 1);
  CHECK(cache.counts().block_evictions == 3);
  CHECK(cache.counts().resident_blocks == 1);
  CHECK(serve(cache, {1, 2, 3}, 1).matched_blocks == 0);
}

TEST_CASE("identities that differ in either half are different blocks") {
  for (const CacheIndex index : indexes) {
    ServedCache cache = make_cache(index, 20, 4);
    const BlockIdentity high = BlockIdentity{1} << 32;
    serve(cache, {high + 5}, 1);
    CHECK(serve(cache, {5}, 1).matched_blocks == 0);
    CHECK(serve(cache, {high + 6}, 1).matched_blocks == 0);
    CHECK(serve(cache, {high + 5}, 1).hit_blocks == 1);
  }
}

TEST_CASE("the cache refuses sizes that make no sense") {
  for (const CacheIndex index : indexes) {
    CHECK_THROWS_AS(make_cache(index, 0, 1), InvalidArgument);
    CHECK_THROWS_AS(make_cache(index, 1, 0), InvalidArgument);
    CHECK_THROWS_AS(make_cache(index, 1 << 29, 1), InvalidArgument);
    CHECK_THROWS_AS(ServedCache({.index = index, .blocks = 1, .slots = 1, .block_size_tokens = 0}), InvalidArgument);
    CHECK_THROWS_AS(ServedCache({.index = index, .blocks = 1, .slots = 1, .longest_blocks = -1}), InvalidArgument);
    const Budget budget{.bytes = 1000, .state_bytes = 100, .kv_bytes_per_token = 10, .block_size_tokens = 8};
    CHECK_THROWS_AS(ServedCache({.index = index, .blocks = 9, .slots = 9, .block_size_tokens = 4, .budget = budget}),
                    InvalidArgument);
    CHECK_THROWS_AS(ServedCache({.index = index, .blocks = 9, .slots = 9, .block_size_tokens = 8, .budget = Budget{}}),
                    InvalidArgument);
  }
}
