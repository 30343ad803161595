// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random_numbers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace stateport::test {

#ifdef STATEPORT_ENABLE_ASSERT
inline constexpr bool assertions_on = true;
#else
inline constexpr bool assertions_on = false;
#endif

/// How many of `count` seeds a build runs by default. With assertions and sanitizers a step takes ten times as long,
/// and fewer seeds suffice to find the faults that they look for. `.ci/deep` runs 300 at least.
constexpr std::uint64_t seeds_of_build(std::uint64_t count) {
  constexpr std::uint64_t enough = 8;
  return assertions_on ? std::max(count / 20, std::min(count, enough)) : count;
}

/// Runs `body(Random&, seed)` for seeds_of_build(count) seeds and names the seed of a failure. STATEPORT_TEST_SEED=n
/// runs seed n alone; STATEPORT_TEST_SEEDS=n runs n seeds, STATEPORT_TEST_SEEDS_MIN=n at least n,
/// STATEPORT_TEST_SEEDS_MAX=n at most n, and STATEPORT_TEST_FIRST_SEED=n those from n on, so that a long run can be
/// shared between processes.
template <class Body>
void for_each_seed(std::uint64_t count, Body&& body) {
  std::uint64_t first = 1;
  count = seeds_of_build(count);
  if (const char* seeds = std::getenv("STATEPORT_TEST_SEEDS")) count = std::stoull(seeds);
  if (const char* least = std::getenv("STATEPORT_TEST_SEEDS_MIN"))
    count = std::max<std::uint64_t>(count, std::stoull(least));
  if (const char* most = std::getenv("STATEPORT_TEST_SEEDS_MAX"))
    count = std::min<std::uint64_t>(count, std::stoull(most));
  if (const char* from = std::getenv("STATEPORT_TEST_FIRST_SEED")) first = std::stoull(from);
  if (const char* one = std::getenv("STATEPORT_TEST_SEED")) {
    first = std::stoull(one);
    count = 1;
  }
  MESSAGE("seeds " << first << " to " << first + count - 1);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    body(random, seed);
  }
}

}  // namespace stateport::test
