// SPDX-License-Identifier: Apache-2.0
#include "containers/hash_index.hpp"

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <vector>

using stateport::detail::HashIndex;

namespace {

const auto any = [](std::uint32_t) { return true; };

/// Few homes, crowded at the table's end, so that clusters run into each other and around it.
std::uint32_t crowded_hash(stateport::test::Random& random) {
  constexpr auto largest = std::numeric_limits<std::uint32_t>::max();
  const auto near = static_cast<std::uint32_t>(random.between(0, 3)) << 28;
  return random.chance(50) ? largest - near : near;
}

}  // namespace

TEST_CASE("a hash index finds each number by its hash and erases from the middle of a cluster that wraps around") {
  HashIndex index(80);
  index.reserve(4);
  constexpr auto last = std::numeric_limits<std::uint32_t>::max();  // its home is the last bucket
  for (const std::uint32_t number : {10u, 11u, 12u}) index.insert(last, number);
  index.insert(0, 13);
  CHECK(index.erase(last, 11));
  CHECK_FALSE(index.erase(last, 11));
  CHECK_FALSE(index.erase(0, 10));
  for (const std::uint32_t number : {10u, 12u})
    CHECK(index.find(last, [&](std::uint32_t other) { return other == number; }) == number);
  CHECK(index.find(0, any) == 13);
  CHECK(index.find(last / 2, any) == HashIndex::none);
  CHECK(index.count() == 3);
  index.check_invariants([](std::uint32_t number) { return number == 13 ? 0u : last; });
}

TEST_CASE("check_invariants of a hash index notices an entry whose hash has changed") {
  HashIndex index(50);
  index.reserve(2);
  index.insert(7, 1);
  CHECK_THROWS_AS(index.check_invariants([](std::uint32_t) { return 8u; }), std::logic_error);
}

TEST_CASE("random hash index operations agree with a map, under colliding hashes and at every load") {
  stateport::test::for_each_seed(4000, [](stateport::test::Random& random, std::uint64_t) {
    const auto capacity = static_cast<std::size_t>(random.between(1, 24));
    HashIndex index(static_cast<std::size_t>(random.between(10, 99)));
    index.reserve(capacity);
    std::unordered_map<std::uint32_t, std::uint32_t> hash_of;  // by number
    const auto expect_found = [&](std::uint32_t number) {
      REQUIRE(index.find(hash_of.at(number), [&](std::uint32_t other) { return other == number; }) == number);
    };
    const auto expect_glance = [&](std::uint32_t hash) {
      const HashIndex::Glance glance = index.glance(hash);
      REQUIRE(glance.number == (glance.ends ? index.find(hash, any) : HashIndex::none));
      REQUIRE((glance.ends || hash_of.size() > 0));
    };
    for (int step = 0; step < 60; ++step) {
      const auto number = static_cast<std::uint32_t>(random.between(0, 29));
      const bool known = hash_of.contains(number);
      if (random.chance(2)) {
        index.clear();
        hash_of.clear();
      } else if (known && random.chance(50)) {
        REQUIRE(index.erase(hash_of[number], number));
        hash_of.erase(number);
      } else if (known) {
        const auto by = static_cast<std::uint32_t>(random.between(30, 59));
        if (hash_of.contains(by)) continue;
        index.assign(hash_of[number], by, [&](std::uint32_t other) { return other == number; });
        hash_of[by] = hash_of[number];
        hash_of.erase(number);
      } else if (hash_of.size() < capacity) {
        const std::uint32_t hash = random.chance(80) ? crowded_hash(random) : static_cast<std::uint32_t>(random.bits());
        if (random.chance(50))
          index.insert(hash, number);
        else
          index.assign(hash, number, [](std::uint32_t) { return false; });
        hash_of[number] = hash;
      } else if (random.chance(20)) {
        index.reserve(hash_of.size());  // never shrinks
      }
      expect_glance(crowded_hash(random));
      for (const auto& [member, hash] : hash_of) {
        expect_found(member);
        expect_glance(hash);
        if (hash_of.size() == 1) REQUIRE(index.glance(hash).number == member);
      }
      REQUIRE(index.count() == hash_of.size());
      index.check_invariants([&](std::uint32_t member) { return hash_of.at(member); });
    }
    index.reserve(4 * capacity);
    for (const auto& [member, hash] : hash_of) expect_found(member);
    index.check_invariants([&](std::uint32_t member) { return hash_of.at(member); });
  });
}

TEST_CASE("a hash index with room allocates nothing") {
  HashIndex index(33);
  index.reserve(1000);
  const std::uint64_t before = stateport::test::heap_allocations();
  for (std::uint32_t number = 0; number < 1000; ++number) index.insert(number * 0x9e3779b9u, number);
  for (std::uint32_t number = 0; number < 1000; ++number) CHECK(index.erase(number * 0x9e3779b9u, number));
  CHECK(stateport::test::heap_allocations() == before);
  CHECK(index.count() == 0);
}
