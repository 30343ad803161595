// SPDX-License-Identifier: Apache-2.0
#include "caches/tree_cache.hpp"

#include <stateport/core/model/error.hpp>

#include "served_request.hpp"

#include <doctest/doctest.h>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::LostHit;

TEST_CASE("lost hits have their reasons, in a tree") {
  TreeCache cache({.blocks = 100, .slots = 3, .block_size_tokens = block_size});
  const CheckpointMode last = CheckpointMode::last;
  CHECK(!serve(cache, last, {1, 2}, 1).lost);                            // slots: 12
  CHECK(serve(cache, last, {1, 2}, 0).lost == LostHit::too_few_tokens);  // 12 serves as it is
  CHECK(serve(cache, last, {1, 4}, 1).lost == LostHit::no_checkpoint);   // 12, 14
  CHECK(serve(cache, last, {1, 2, 3}, 1).hit_blocks == 2);               // 12, 14, 123
  serve(cache, last, {7}, 1);                                            // 12, 123, 7
  serve(cache, last, {8}, 1);                                            // 123, 7, 8: 12 is no leaf, its KV stays
  CHECK(serve(cache, last, {1, 2, 9}, 1).lost == LostHit::evicted);
}

TEST_CASE("a leaf that loses its state loses its KV too") {
  TreeCache cache({.blocks = 100, .slots = 1, .block_size_tokens = block_size});
  serve(cache, CheckpointMode::last, {1, 2, 3}, 1);
  serve(cache, CheckpointMode::last, {7}, 1);
  CHECK(cache.counts().state_evictions == 1);
  CHECK(cache.counts().block_evictions == 3);
  CHECK(cache.counts().resident_blocks == 1);
  CHECK(serve(cache, CheckpointMode::last, {1, 2, 3}, 1).matched_blocks == 0);
}

TEST_CASE("KV that was matched stays while room is made for the rest of the prompt") {
  TreeCache cache({.blocks = 6, .slots = 4, .block_size_tokens = block_size});
  serve(cache, CheckpointMode::last, {1, 2, 3}, 1);
  serve(cache, CheckpointMode::last, {7, 8, 9}, 1);
  // Continues the oldest leaf without its state: only the younger one can go.
  const Hit hit = serve(cache, CheckpointMode::last, {1, 2, 4, 5}, 1);
  CHECK(hit.matched_blocks == 2);
  CHECK(hit.hit_blocks == 0);
  cache.check_invariants();
  CHECK(serve(cache, CheckpointMode::last, {1, 2, 4, 5}, 1).hit_blocks == 4);
}

TEST_CASE("identities that differ in either half are different blocks") {
  TreeCache cache({.blocks = 20, .slots = 4, .block_size_tokens = block_size});
  const BlockIdentity high = BlockIdentity{1} << 32;
  serve(cache, CheckpointMode::last, {high + 5}, 1);
  CHECK(serve(cache, CheckpointMode::last, {5}, 1).matched_blocks == 0);
  CHECK(serve(cache, CheckpointMode::last, {high + 6}, 1).matched_blocks == 0);
  CHECK(serve(cache, CheckpointMode::last, {high + 5}, 1).hit_blocks == 1);
}

TEST_CASE("a tree has no indices for more blocks than half of 2^31") {
  CHECK_THROWS_AS(TreeCache({.blocks = 1 << 30, .slots = 1}), stateport::InvalidArgument);
}
