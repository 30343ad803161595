// SPDX-License-Identifier: Apache-2.0
#include "evict/victim_heap.hpp"

#include "random.hpp"
#include "scanned_victims.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using stateport::VictimHeap;

TEST_CASE("victim heap gives the smallest key and breaks ties by index") {
  VictimHeap<int> heap(4);
  heap.push(3, 7);
  heap.push(2, 5);
  heap.push(1, 5);
  const auto always = [](std::uint32_t) { return true; };
  const std::vector<int> keys = {0, 5, 5, 7};
  const auto key_of = [&](std::uint32_t i) { return keys[i]; };
  CHECK(heap.top(always, key_of) == 1u);
  heap.erase(1);
  CHECK(heap.top(always, key_of) == 2u);
}

TEST_CASE("victim heap agrees with a scan over random touches, locks, erasures and smaller keys") {
  stateport::test::for_each_seed(2000, [](stateport::test::Random& random, std::uint64_t) {
    const auto n = static_cast<std::uint32_t>(random.between(1, 20));
    VictimHeap<std::int64_t> heap(n);
    stateport::test::ScannedVictims all(n);
    for (int step = 0; step < 100; ++step) {
      const auto i = static_cast<std::uint32_t>(random.between(0, n - 1));
      switch (random.between(0, 5)) {
        case 0:
          all.key[i] += random.between(0, 9);
          break;
        case 1:
          all.locked[i] = true;
          break;
        case 2:
          all.locked[i] = false;
          if (all.member[i]) heap.push(i, all.key[i]);
          break;
        case 3:
          all.member[i] = true;
          if (!all.locked[i]) heap.push(i, all.key[i]);
          break;
        case 4:
          all.member[i] = false;
          heap.erase(i);
          break;
        default:
          all.key[i] -= random.between(0, 9);
          all.rank_again(heap, i);
      }
      all.require_same_top(heap);
      heap.check_invariants();
    }
  });
}
