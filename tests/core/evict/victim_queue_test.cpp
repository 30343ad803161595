// SPDX-License-Identifier: Apache-2.0
#include "evict/victim_queue.hpp"

#include "heap_counter.hpp"
#include "random.hpp"
#include "scanned_victims.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

using stateport::VictimQueue;

TEST_CASE("victim queue gives the smallest key and breaks ties by index, late members included") {
  VictimQueue queue;
  queue.reserve(6);
  const std::vector<std::int64_t> keys = {3, 3, 3, 7, 1, 3};
  const auto always = [](std::uint32_t) { return true; };
  const auto key_of = [&](std::uint32_t i) { return keys[i]; };
  for (const std::uint32_t index : {2u, 1u, 3u}) queue.push(index, keys[index]);
  CHECK(queue.top(always, key_of) == 1u);
  CHECK(queue.upcoming(1) == 2u);
  for (const std::uint32_t index : {0u, 4u, 5u}) queue.push(index, keys[index]);
  for (const std::uint32_t expected : {4u, 0u, 1u, 2u, 5u, 3u}) {
    CHECK(queue.top(always, key_of) == expected);
    queue.erase(expected);
    queue.check_invariants();
  }
  CHECK_FALSE(queue.top(always, key_of));
}

TEST_CASE("victim queue agrees with a scan over random touches, locks, erasures and smaller keys") {
  stateport::test::for_each_seed(3000, [](stateport::test::Random& random, std::uint64_t) {
    const auto n = static_cast<std::uint32_t>(random.between(1, 20));
    VictimQueue queue;
    queue.reserve(n);
    stateport::test::ScannedVictims all(n);
    std::int64_t tick = 0;
    const bool ticks_only = random.chance(50);
    for (int step = 0; step < 150; ++step) {
      const auto i = static_cast<std::uint32_t>(random.between(0, n - 1));
      switch (random.between(0, 7)) {
        case 0:
          all.key[i] = ticks_only ? tick : all.key[i] + random.between(0, 9);
          break;
        case 1:
          all.locked[i] = true;
          break;
        case 2:
          all.locked[i] = false;
          if (all.member[i]) queue.update(i, all.key[i]);
          break;
        case 3:
          if (!all.member[i] && ticks_only) all.key[i] = tick;
          all.member[i] = true;
          if (!all.locked[i]) queue.push(i, all.key[i]);
          break;
        case 4:
          all.member[i] = false;
          queue.erase(i);
          break;
        case 5:
          tick += random.between(0, 1);
          break;
        case 6:
          if (random.chance(3)) {
            queue.clear();
            all.member.assign(n, false);
          }
          break;
        default:
          if (random.chance(ticks_only ? 10 : 100)) all.key[i] -= random.between(0, 9);
          all.rank_again(queue, i);
      }
      if (random.chance(70)) all.require_same_top(queue);
      queue.check_invariants();
    }
  });
}

TEST_CASE("a victim queue drops dead entries without allocating") {
  VictimQueue queue;
  queue.reserve(8);
  const std::uint64_t before = stateport::test::heap_allocations();
  queue.push(7, 0);  // stays at the head
  for (std::int64_t tick = 1; tick < 1000; ++tick) {
    const auto index = static_cast<std::uint32_t>(tick % 7);
    queue.erase(index);
    queue.push(index, tick);
  }
  CHECK(stateport::test::heap_allocations() == before);
  queue.check_invariants();
  CHECK(queue.top([](std::uint32_t) { return true; }, [](std::uint32_t k) { return k == 7 ? 0 : 1000; }) == 7u);
}
