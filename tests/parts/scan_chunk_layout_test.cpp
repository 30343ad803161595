// SPDX-License-Identifier: Apache-2.0
#include "scan_chunk_layout.hpp"

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using stateport::test::ScanChunkLayout;
using Int32s = std::vector<std::int32_t>;

namespace {
Int32s copy_of(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}
}  // namespace

TEST_CASE("pieces end on the absolute grid, at the checkpoint and at the end of the query") {
  ScanChunkLayout layout;
  test::for_each_seed(5000, [&](test::Random& random, std::uint64_t) {
    const std::int32_t chunk = random.between32(1, 9);
    const auto sequences = static_cast<std::size_t>(random.between(0, 4));
    Int32s computed(sequences), query(sequences), offsets(sequences);
    for (std::size_t i = 0; i < sequences; ++i) {
      computed[i] = random.between32(0, 30);
      query[i] = random.between32(0, 30);
      offsets[i] = random.chance(50) ? 0 : random.between32(0, query[i]);
    }
    layout.build(chunk, computed, query, offsets);
    // Token by token: a piece ends after a token if any of the three reasons holds there.
    Int32s cumulative = {0}, owner, last, checkpoint;
    std::int32_t tokens = 0;
    for (std::size_t i = 0; i < sequences; ++i) {
      std::int32_t checkpoint_piece = -1;
      for (std::int32_t t = 1; t <= query[i]; ++t) {
        ++tokens;
        if ((computed[i] + t) % chunk != 0 && t != query[i] && t != offsets[i]) continue;
        if (t == offsets[i]) checkpoint_piece = static_cast<std::int32_t>(owner.size());
        owner.push_back(static_cast<std::int32_t>(i));
        cumulative.push_back(tokens);
      }
      last.push_back(static_cast<std::int32_t>(owner.size()) - 1);
      checkpoint.push_back(checkpoint_piece);
    }
    REQUIRE(copy_of(layout.cumulative_tokens()) == cumulative);
    REQUIRE(copy_of(layout.sequence()) == owner);
    REQUIRE(copy_of(layout.last_piece()) == last);
    REQUIRE(copy_of(layout.checkpoint_piece()) == checkpoint);
  });
}

TEST_CASE("a scan chunk layout refuses arrays that do not fit and stays as it was") {
  ScanChunkLayout layout;
  layout.build(4, Int32s{0}, Int32s{6}, {});
  const auto refused = [&](std::int32_t chunk, Int32s computed, Int32s query, Int32s offsets) {
    CHECK_THROWS_AS(layout.build(chunk, computed, query, offsets), InvalidArgument);
    CHECK(copy_of(layout.cumulative_tokens()) == Int32s{0, 4, 6});
  };
  refused(0, {0}, {6}, {});
  refused(4, {0, 0}, {6}, {});
  refused(4, {0}, {6}, {1, 2});
  refused(4, {-1}, {6}, {});
  refused(4, {0}, {-6}, {});
  refused(4, {0}, {6}, {7});
  refused(4, {0}, {6}, {-1});
  refused(4, {0, 0}, {INT32_MAX, 1}, {});
}
