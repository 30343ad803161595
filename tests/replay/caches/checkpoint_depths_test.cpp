// SPDX-License-Identifier: Apache-2.0
#include "caches/checkpoint_depths.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport::replay;
using stateport::CheckpointPlacement;

namespace {
using Depths = std::vector<std::int32_t>;

Depths depths(CheckpointPlacement placement, std::int32_t hit, std::int32_t matched, std::int32_t usable,
              std::int32_t beyond = 0) {
  Depths result = {99};
  choose_depths(placement, {.hit = hit, .matched = matched, .usable = usable, .full = usable + beyond}, result);
  return result;
}
}  // namespace

TEST_CASE("every keeps all depths after the hit") {
  CHECK(depths(CheckpointPlacement::every, 0, 0, 3) == Depths{1, 2, 3});
  CHECK(depths(CheckpointPlacement::every, 2, 3, 5) == Depths{3, 4, 5});
  CHECK(depths(CheckpointPlacement::every, 3, 3, 3).empty());
  CHECK(depths(CheckpointPlacement::every, 0, 0, 0).empty());
}

TEST_CASE("last keeps the last full block unless the request started there") {
  CHECK(depths(CheckpointPlacement::last, 0, 2, 3) == Depths{3});
  CHECK(depths(CheckpointPlacement::last, 3, 3, 3).empty());
  CHECK(depths(CheckpointPlacement::last, 0, 0, 0).empty());
}

TEST_CASE("branch also keeps the end of the resident prefix if it has no state yet") {
  CHECK(depths(CheckpointPlacement::branch, 1, 3, 5) == Depths{3, 5});
  CHECK(depths(CheckpointPlacement::branch, 3, 3, 5) == Depths{5});
  CHECK(depths(CheckpointPlacement::branch, 2, 3, 3) == Depths{3});
  CHECK(depths(CheckpointPlacement::branch, 0, 0, 4) == Depths{4});
}

TEST_CASE("the end of a prompt of whole blocks is of no use to the same prompt, and every alone keeps it") {
  CHECK(depths(CheckpointPlacement::last, 0, 0, 3, 1) == Depths{3});
  CHECK(depths(CheckpointPlacement::last, 3, 4, 3, 1).empty());
  CHECK(depths(CheckpointPlacement::branch, 2, 4, 3, 1) == Depths{3});
  CHECK(depths(CheckpointPlacement::rungs, 0, 0, 6, 1) == Depths{2, 4, 5, 6});
  CHECK(depths(CheckpointPlacement::every, 0, 0, 2, 1) == Depths{1, 2, 3});
  CHECK(depths(CheckpointPlacement::last, 0, 0, 0, 1) == Depths{1});  // there is no other
}

TEST_CASE("states_max bounds the states that a mode can leave") {
  CHECK(states_max(CheckpointPlacement::every, 10, 1000) == 1000);
  CHECK(states_max(CheckpointPlacement::last, 10, 1000) == 10);
  CHECK(states_max(CheckpointPlacement::branch, 10, 1000) == 20);
  CHECK(states_max(CheckpointPlacement::branch, 10, 15) == 15);
}

TEST_CASE("rungs lie 1, 2 and 4 blocks before the end, beyond the matched prefix") {
  CHECK(depths(CheckpointPlacement::rungs, 0, 0, 6) == Depths{2, 4, 5, 6});
  CHECK(depths(CheckpointPlacement::rungs, 2, 3, 8) == Depths{3, 4, 6, 7, 8});
  CHECK(depths(CheckpointPlacement::rungs, 3, 6, 8) == Depths{6, 7, 8});
  CHECK(depths(CheckpointPlacement::rungs, 0, 0, 1) == Depths{1});
  CHECK(states_max(CheckpointPlacement::rungs, 3, 100) == 15);
  CHECK(states_max(CheckpointPlacement::rungs, 3, 7) == 7);
}
