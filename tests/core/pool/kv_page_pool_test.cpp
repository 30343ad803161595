// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/kv_page_pool.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

using stateport::InvalidArgument;
using stateport::KvIndex;
using stateport::KvPagePool;

namespace {
std::vector<KvIndex> take(KvPagePool& pool, std::size_t count) {
  std::vector<KvIndex> indices(count);
  REQUIRE(pool.allocate(indices));
  return indices;
}
}  // namespace

TEST_CASE("a KV pool hands out whole pages from page 1 on, longest free first") {
  KvPagePool pool(18, 4);
  CHECK(pool.capacity() == 16);
  CHECK(take(pool, 6) == std::vector<KvIndex>{4, 5, 6, 7, 8, 9});
  CHECK(pool.available() == 8);
  const std::vector<KvIndex> back{9, 8, 5};
  pool.release(back);
  CHECK(take(pool, 16) == std::vector<KvIndex>{12, 13, 14, 15, 16, 17, 18, 19, 8, 9, 10, 11, 4, 5, 6, 7});
  std::vector<KvIndex> one(1);
  CHECK_FALSE(pool.allocate(one));
}

TEST_CASE("a KV pool allocates when it is made, and then no more") {
  std::optional<KvPagePool> pool;
  CHECK(stateport::test::fail_each_allocation([&](std::uint64_t) { pool.emplace(64, 4); }, [&](std::uint64_t) {}) == 2);
  std::vector<KvIndex> indices(30);
  const std::uint64_t before = stateport::test::heap_allocations();
  bool all = true;
  for (int round = 0; round < 3; ++round) {
    all = pool->allocate(indices) && all;
    pool->release(indices);
  }
  pool->reset();
  CHECK(stateport::test::heap_allocations() == before);
  CHECK(all);
  // check_invariants() may fail to allocate; the pool stays as it was.
  REQUIRE(pool->allocate(indices));
  CHECK(stateport::test::fail_each_allocation([&](std::uint64_t) { pool->check_invariants(); },
                                              [&](std::uint64_t) { CHECK(pool->available() == 32); }) > 0);
}

TEST_CASE("a KV pool refuses bad indices and stays as it was") {
  CHECK_THROWS_AS(KvPagePool(8, 0), InvalidArgument);
  CHECK_THROWS_AS(KvPagePool(-1, 1), InvalidArgument);
  CHECK_THROWS_AS(KvPagePool(std::int64_t{1} << 31, 1), InvalidArgument);
  KvPagePool pool(8, 4);
  const auto taken = take(pool, 4);
  for (const KvIndex bad : {-1, 0, 3, 8, 12}) {
    const std::vector<KvIndex> indices{taken.front(), bad};
    CHECK_THROWS_AS(pool.release(indices), InvalidArgument);
  }
  CHECK(pool.available() == 4);
  pool.check_invariants();
}

TEST_CASE("random KV pool operations agree with a plain queue") {
  stateport::test::for_each_seed(500, [](stateport::test::Random& random, std::uint64_t) {
    const std::int32_t page = random.between32(1, 4);
    KvPagePool pool(random.between(0, 40), page);
    std::deque<std::int32_t> model;
    for (std::int32_t number = 1; number <= pool.capacity() / page; ++number) model.push_back(number);
    std::vector<std::vector<KvIndex>> held;
    for (int step = 0; step < 60; ++step) {
      if (random.chance(50)) {
        std::vector<KvIndex> out(static_cast<std::size_t>(random.between(0, 9)));
        const std::size_t pages = (out.size() + static_cast<std::size_t>(page) - 1) / static_cast<std::size_t>(page);
        REQUIRE(pool.allocate(out) == (pages <= model.size()));
        if (pages > model.size()) continue;
        for (std::size_t i = 0; i < out.size(); ++i)
          REQUIRE(out[i] == model[i / static_cast<std::size_t>(page)] * page + static_cast<KvIndex>(i) % page);
        model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(pages));
        held.push_back(out);
      } else if (!held.empty()) {
        pool.release(held.front());
        for (std::size_t i = 0; i < held.front().size(); i += static_cast<std::size_t>(page))
          model.push_back(held.front()[i] / page);
        held.erase(held.begin());
      }
      REQUIRE(pool.available() == static_cast<std::int64_t>(model.size()) * page);
      pool.check_invariants();
    }
  });
}
