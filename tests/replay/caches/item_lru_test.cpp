// SPDX-License-Identifier: Apache-2.0
#include "caches/item_lru.hpp"

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

using stateport::replay::ItemLru;
using stateport::test::for_each_seed;
using stateport::test::heap_allocations;
using stateport::test::Random;

TEST_CASE("items leave in the order of their last touch until the budget is kept") {
  for_each_seed(300, [](Random& random, std::uint64_t) {
    const std::int64_t budget = random.between(0, 60);
    ItemLru items(budget);
    std::vector<std::pair<ItemLru::Item, std::int64_t>> model;  // oldest first
    for (int step = 0; step < 200; ++step) {
      const auto item = static_cast<ItemLru::Item>(random.between(0, 20));
      const auto known = std::ranges::find(model, item, &std::pair<ItemLru::Item, std::int64_t>::first);
      const std::int64_t bytes = random.between(0, 9);
      const std::int64_t counted = known == model.end() ? bytes : known->second;
      REQUIRE(items.contains(item) == (known != model.end()));
      if (known != model.end()) model.erase(known);
      model.emplace_back(item, counted);
      items.touch(item, bytes);
      while (random.chance(50) && items.over_budget()) {
        REQUIRE(items.evict() == model.front().first);
        model.erase(model.begin());
      }
      std::int64_t used = 0;
      for (const auto& [known_item, known_bytes] : model) used += known_bytes;
      REQUIRE(items.used_bytes() == used);
      REQUIRE(items.over_budget() == (used > budget));
      REQUIRE(items.size() == model.size());
      items.check_invariants();
    }
  });
}

TEST_CASE("an empty list has nothing to evict") {
  ItemLru items(0);
  CHECK(items.evict() == ItemLru::none);
  CHECK_FALSE(items.over_budget());
}

TEST_CASE("reserved items are touched and evicted without an allocation") {
  ItemLru items(10, 64);
  const std::uint64_t before = heap_allocations();
  for (ItemLru::Item step = 0; step < 1000; ++step) {
    items.touch(step % 64, 1);
    while (items.over_budget()) items.evict();
  }
  CHECK(heap_allocations() == before);
}

TEST_CASE("a negative budget is refused") {
  CHECK_THROWS_AS(ItemLru(-1), stateport::InvalidArgument);
}
