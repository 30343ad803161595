// SPDX-License-Identifier: Apache-2.0
#include "tree/path_ahead.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using stateport::detail::PathAhead;

namespace {

constexpr std::uint32_t path_depth = 300;
constexpr std::uint32_t node_at_depth(std::uint32_t depth) {
  return 1000 + depth;
}

struct Hints {
  std::uint32_t near = PathAhead::none;
  std::uint32_t far = PathAhead::none;
};

/// The hints of each node of a path after one way up, by depth.
std::vector<Hints> hints_of_a_path() {
  std::vector<Hints> hints(path_depth + 1);
  PathAhead below;
  for (std::uint32_t depth = path_depth; depth > 0; --depth) {
    hints[depth] = {below.at(PathAhead::near(depth)), below.at(PathAhead::far(depth))};
    below.note(depth, node_at_depth(depth));
  }
  return hints;
}

}  // namespace

TEST_CASE("every node of a path but the first is known before the walk comes to it") {
  const std::vector<Hints> hints = hints_of_a_path();
  PathAhead ahead;
  CHECK(ahead.at(1) == PathAhead::none);
  for (std::uint32_t depth = 1; depth < path_depth; ++depth) {
    if (ahead.at(PathAhead::near(depth)) == PathAhead::none) ahead.note(PathAhead::near(depth), hints[depth].near);
    ahead.note(PathAhead::far(depth), hints[depth].far);
    CHECK(ahead.at(depth + 1) == node_at_depth(depth + 1));
  }
}

TEST_CASE("the first 31 levels of a path are known after 4 misses in turn, all others a full distance ahead") {
  std::vector<std::uint32_t> misses(2 * path_depth, 0);  // in turn, from the first node to the one at a depth
  for (std::uint32_t depth = 1; depth < path_depth; ++depth)
    for (const std::uint32_t hinted : {PathAhead::far(depth), PathAhead::near(depth)})
      if (misses[hinted] == 0) misses[hinted] = misses[depth] + 1;
  CHECK(misses[2] == 1);
  CHECK(std::ranges::max(std::vector(misses.begin(), misses.begin() + 32)) == 4);
  for (std::uint32_t depth = 32; depth < path_depth; ++depth)
    CHECK(misses[depth] == misses[depth - PathAhead::levels] + 1);
}

TEST_CASE("a walk that enters a path in the middle gets the next node") {
  const std::vector<Hints> hints = hints_of_a_path();
  for (std::uint32_t depth = PathAhead::levels; depth < path_depth; ++depth) {
    CHECK(hints[depth].near == node_at_depth(depth + 1));
    CHECK(hints[depth].far ==
          (depth + PathAhead::levels <= path_depth ? node_at_depth(depth + PathAhead::levels) : PathAhead::none));
  }
}
