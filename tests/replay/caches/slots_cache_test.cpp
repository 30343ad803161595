// SPDX-License-Identifier: Apache-2.0
#include "caches/slots_cache.hpp"

#include "served_request.hpp"

#include <doctest/doctest.h>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::LostHit;

TEST_CASE("lost hits have their reasons") {
  SlotsCache cache({.blocks = 100, .slots = 2, .block_size_tokens = block_size});
  CHECK(!serve(cache, CheckpointMode::last, {1, 2, 3}, 1).lost);
  CHECK(serve(cache, CheckpointMode::last, {1, 2, 4}, 1).lost == LostHit::no_checkpoint);
  CHECK(serve(cache, CheckpointMode::last, {1, 2, 3}, 0).lost == LostHit::too_few_tokens);
  serve(cache, CheckpointMode::last, {7}, 1);
  serve(cache, CheckpointMode::last, {8}, 1);
  CHECK(serve(cache, CheckpointMode::last, {1, 2, 4}, 1).lost == LostHit::evicted);
}
