// SPDX-License-Identifier: Apache-2.0
#include "tree/path_walked.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using stateport::detail::PathWalked;

TEST_CASE("the way up gets the nodes some levels above, then the root") {
  PathWalked path;
  for (std::uint32_t depth = 1; depth <= 4000; ++depth) path.note(depth, 7 * depth);
  for (std::uint32_t depth = 4000; depth > PathWalked::levels; --depth)
    CHECK(path.above(depth) == 7 * (depth - PathWalked::levels));
  for (std::uint32_t depth = PathWalked::levels; depth > 0; --depth) CHECK(path.above(depth) == 0);
}

TEST_CASE("of a path deeper than there is room for the lower end is known") {
  PathWalked path;
  for (std::uint32_t depth = 1; depth <= 10000; ++depth) path.note(depth, 7 * depth);
  for (std::uint32_t depth = 10000; depth > 10000 - 4096 + PathWalked::levels; --depth)
    CHECK(path.above(depth) == 7 * (depth - PathWalked::levels));
}
