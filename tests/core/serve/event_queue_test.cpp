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

/// A queue beside its model: the numbers of the events that wait are the last ones, at most `capacity`.
struct Told {
  explicit Told(std::size_t capacity) : most(capacity), taken(2 * capacity) { queue.reserve(capacity); }

  void push(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) queue.push({.tokens = static_cast<std::int64_t>(++pushed)});
    got = std::max<std::uint64_t>(got, pushed - std::min<std::uint64_t>(pushed, most));
  }
  void take(std::size_t count) {
    const std::uint64_t expected = std::min<std::uint64_t>(count, pushed - got);
    REQUIRE(queue.take(std::span(taken).first(count)) == expected);
    for (std::size_t i = 0; i < expected; ++i) {
      ++got;
      REQUIRE(taken[i].sequence == got);
      REQUIRE(taken[i].tokens == static_cast<std::int64_t>(got));
    }
  }

  EventQueue queue;
  std::size_t most;
  std::vector<CacheEvent> taken;
  std::uint64_t pushed = 0;
  std::uint64_t got = 0;  ///< the last one that was taken or lost
};

}  // namespace

TEST_CASE("a queue of events that are not taken keeps the last ones, and their numbers tell how many were lost") {
  for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{7}}) {
    Told reported(capacity);
    reported.push(capacity);
    reported.take(1);
    reported.push(3 * capacity + 1);
    reported.take(2 * capacity);
    reported.take(1);
  }
}

TEST_CASE("random events are told once, in order, or lost, oldest first, and none allocates") {
  test::for_each_seed(100, [](Random& random, std::uint64_t) {
    Told reported(static_cast<std::size_t>(random.between(1, 50)));
    const std::uint64_t before = test::heap_allocations();
    for (int step = 0; step < 1000; ++step) {
      const auto count = static_cast<std::size_t>(random.between(0, std::ssize(reported.taken)));
      if (random.chance(50))
        reported.push(random.chance(50) ? count : count / 4);
      else
        reported.take(count);
    }
    REQUIRE(test::heap_allocations() == before);
  });
}
