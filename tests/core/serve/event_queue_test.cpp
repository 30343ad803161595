// SPDX-License-Identifier: Apache-2.0
#include "serve/event_queue.hpp"

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace stateport;
using detail::EventQueue;
using test::Random;

namespace {

/// A queue beside its model: the numbers of all events that wait are those behind the last one taken.
struct Told {
  explicit Told(std::size_t most) : taken(most) {}

  void push(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) queue.push({.tokens = static_cast<std::int32_t>(++pushed)});
  }
  void take(std::size_t count) {
    const std::uint64_t expected = std::min<std::uint64_t>(count, pushed - got);
    REQUIRE(queue.take(std::span(taken).first(count)) == expected);
    for (std::size_t i = 0; i < expected; ++i) {
      ++got;
      REQUIRE(taken[i].sequence == got);
      REQUIRE(taken[i].tokens == static_cast<std::int32_t>(got));
    }
  }

  EventQueue queue{true};
  std::vector<CacheEvent> taken;
  std::uint64_t pushed = 0;
  std::uint64_t got = 0;
};

}  // namespace

TEST_CASE("a queue of events whose reader always leaves some behind does not grow") {
  constexpr std::size_t at_once = 10;
  constexpr std::size_t left = 20;
  for (const std::size_t prepared : {at_once, 2 * at_once, 7 * at_once}) {
    CAPTURE(prepared);
    Told told(at_once);
    told.queue.prepare(left);
    told.push(left);
    std::uint64_t before = 0;
    constexpr int rounds = 100000;
    constexpr int warm = 100;
    for (int round = 0; round < rounds; ++round) {
      if (round == warm) before = test::heap_allocations();
      told.queue.prepare(prepared);
      told.push(at_once);
      told.take(at_once);
    }
    CHECK(test::heap_allocations() == before);
  }
}

TEST_CASE("random events are told once, in order, and what was prepared for allocates nothing") {
  test::for_each_seed(20, [](Random& random, std::uint64_t) {
    constexpr std::int64_t most = 50;
    Told told(static_cast<std::size_t>(most));
    for (int step = 0; step < 2000; ++step) {
      const auto count = static_cast<std::size_t>(random.between(0, most));
      if (random.chance(50)) {
        told.queue.prepare(count);
        const std::uint64_t before = test::heap_allocations();
        told.push(random.chance(50) ? count : count / 2);
        REQUIRE(test::heap_allocations() == before);
      } else {
        told.take(count);
      }
    }
  });
}
