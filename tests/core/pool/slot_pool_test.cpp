// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/slot_pool.hpp>

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <vector>

using stateport::InvalidArgument;
using stateport::SlotId;
using stateport::SlotPool;
using stateport::StateTag;

namespace {
std::vector<SlotId> take(SlotPool& pool, std::size_t count) {
  std::vector<SlotId> slots(count);
  REQUIRE(pool.allocate(slots));
  return slots;
}
}  // namespace

TEST_CASE("a slot that is handed out again has lost tag and owner") {
  for (const SlotPool::Order order : {SlotPool::Order::stack, SlotPool::Order::queue}) {
    SlotPool pool(1, order);
    SlotId slot;
    REQUIRE(pool.allocate({&slot, 1}));
    pool.set_tag(slot, {.token_count = 16, .prefix = {{1, 2}}, .layout_fingerprint = 3});
    pool.set_owner(slot, 7);
    pool.release(slot);
    REQUIRE(pool.allocate({&slot, 1}));
    CHECK(pool.tag(slot) == StateTag{});
    CHECK(pool.owner(slot) == SlotPool::caller);
    pool.check_invariants();
  }
}

TEST_CASE("a stack pool hands out its top segment in stored order") {
  SlotPool pool(4);
  CHECK(take(pool, 2) == std::vector{SlotId{2}, SlotId{3}});
  CHECK(take(pool, 1) == std::vector{SlotId{1}});
  std::vector<SlotId> two(2);
  CHECK_FALSE(pool.allocate(two));
  CHECK(pool.free_slots() == 1);
}

TEST_CASE("a queue pool hands out the slot that has been free longest") {
  SlotPool pool(3, SlotPool::Order::queue);
  const auto first = take(pool, 2);
  CHECK(first == std::vector{SlotId{0}, SlotId{1}});
  pool.release(first[1]);
  CHECK(take(pool, 2) == std::vector{SlotId{2}, SlotId{1}});
}

TEST_CASE("a slot pool refuses bad slots and stays as it was") {
  SlotPool pool(3);
  const SlotId slot = take(pool, 1).front();
  CHECK_THROWS_AS(SlotPool(-1), InvalidArgument);
  CHECK_THROWS_AS(pool.release(SlotId{0}), InvalidArgument);
  CHECK_THROWS_AS(pool.release(SlotId{3}), InvalidArgument);
  CHECK_THROWS_AS(pool.release(SlotId{}), InvalidArgument);
  const std::vector twice{slot, slot};
  pool.set_owner(slot, 1);
  CHECK_THROWS_AS(pool.release(twice), InvalidArgument);
  CHECK(pool.owner(slot) == 1);
  pool.set_owner(slot, SlotPool::caller);
  CHECK_THROWS_AS(pool.unlock(slot), InvalidArgument);
  CHECK_THROWS_AS(pool.set_owner(slot, -2), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(pool.tag(SlotId{0})), InvalidArgument);
  pool.lock(slot);
  CHECK_THROWS_AS(pool.release(slot), InvalidArgument);
  pool.unlock(slot);
  CHECK(pool.owner(slot) == SlotPool::caller);
  pool.check_invariants();
  pool.release(slot);
  CHECK(pool.free_slots() == 3);
}

TEST_CASE("random slot pool operations agree with a plain list") {
  stateport::test::for_each_seed(2000, [](stateport::test::Random& random, std::uint64_t) {
    const bool queue = random.chance(50);
    SlotPool pool(random.between32(0, 9), queue ? SlotPool::Order::queue : SlotPool::Order::stack);
    std::deque<SlotId> model;
    for (const SlotId slot : pool.free_list()) model.push_back(slot);
    std::vector<SlotId> held;
    for (int step = 0; step < 60; ++step) {
      if (random.chance(50)) {
        std::vector<SlotId> out(static_cast<std::size_t>(random.between(0, 4)));
        const bool expected = out.size() <= model.size();
        REQUIRE(pool.allocate(out) == expected);
        if (expected) {
          const auto first = queue ? model.begin() : model.end() - static_cast<std::ptrdiff_t>(out.size());
          REQUIRE(std::equal(out.begin(), out.end(), first));
          model.erase(first, first + static_cast<std::ptrdiff_t>(out.size()));
          held.insert(held.end(), out.begin(), out.end());
        }
      } else if (!held.empty()) {
        std::swap(held[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(held.size()) - 1))],
                  held.back());
        pool.release(held.back());
        model.push_back(held.back());
        held.pop_back();
      }
      REQUIRE(std::ranges::equal(pool.free_list(), model));
      pool.check_invariants();
    }
  });
}

TEST_CASE("a slot pool knows when each slot was used last, and forgets it with the slot") {
  SlotPool pool(2);
  const auto slots = take(pool, 2);
  pool.touch(slots[0], 7);
  CHECK(pool.last_use_tick(slots[0]) == 7);
  CHECK(pool.last_use_tick(slots[1]) == 0);
  pool.release(slots[0]);
  CHECK_THROWS_AS(pool.touch(slots[0], 8), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(pool.last_use_tick(slots[0])), InvalidArgument);
  CHECK_THROWS_AS(pool.touch(SlotId{2}, 8), InvalidArgument);
  CHECK(take(pool, 1) == std::vector{slots[0]});
  CHECK(pool.last_use_tick(slots[0]) == 0);
  pool.check_invariants();
}
