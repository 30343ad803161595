// SPDX-License-Identifier: Apache-2.0
#include "evict/victim_draw.hpp"

#include <stateport/core/evict/eviction_policy.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;

namespace {

/// Model of a draw: its members, those that are locked, and their current keys.
struct Candidates {
  explicit Candidates(std::size_t n) : value(n, 0), member(n, false), locked(n, false) {}

  [[nodiscard]] bool eligible(std::uint32_t i) const { return member[i] && !locked[i]; }
  [[nodiscard]] VictimKey key(std::uint32_t i) const { return {value[i], 0}; }
  [[nodiscard]] std::optional<std::uint32_t> draw(VictimDraw<VictimKey>& from,
                                                  std::vector<std::uint32_t>* seen = nullptr) const {
    return from.draw([this](std::uint32_t i) { return eligible(i); },
                     [&](std::uint32_t i) {
                       REQUIRE(eligible(i));
                       if (seen != nullptr) seen->push_back(i);
                       return key(i);
                     });
  }
  /// How many eligible candidates go before `i`.
  [[nodiscard]] std::size_t before(std::uint32_t i) const {
    std::size_t count = 0;
    for (std::uint32_t other = 0; other < value.size(); ++other)
      count += eligible(other) && (value[other] < value[i] || (value[other] == value[i] && other < i));
    return count;
  }
  [[nodiscard]] std::size_t count() const {
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < value.size(); ++i) count += eligible(i);
    return count;
  }

  std::vector<std::int32_t> value;
  std::vector<bool> member;
  std::vector<bool> locked;
};

}  // namespace

TEST_CASE("with no more candidates than draws a draw gives the smallest key and breaks ties by index") {
  VictimDraw<VictimKey> draw(4, 8);
  Candidates candidates(8);
  candidates.value = {0, 5, 3, 3, 7, 0, 0, 0};
  for (const std::uint32_t i : {4u, 3u, 2u, 1u}) {
    candidates.member[i] = true;
    draw.push(i);
  }
  CHECK(candidates.draw(draw) == 2u);
  draw.erase(2);
  candidates.member[2] = false;
  CHECK(candidates.draw(draw) == 3u);
  draw.clear();
  CHECK(candidates.draw(draw) == std::nullopt);
}

TEST_CASE("a draw agrees with a scan under random touches, locks and erasures, and twins answer alike") {
  test::for_each_seed(3000, [](test::Random& random, std::uint64_t) {
    const auto n = static_cast<std::uint32_t>(random.between(1, 40));
    const auto draws = static_cast<std::int32_t>(random.between(1, 12));
    VictimDraw<VictimKey> draw(draws, n);
    VictimDraw<VictimKey> twin(draws, n);
    Candidates candidates(n);
    for (int step = 0; step < 100; ++step) {
      const auto i = static_cast<std::uint32_t>(random.between(0, n - 1));
      switch (random.between(0, 4)) {
        case 0:
          candidates.value[i] = static_cast<std::int32_t>(random.between(0, 30));
          break;
        case 1:
          candidates.locked[i] = true;
          break;
        case 2:
          candidates.locked[i] = false;
          break;
        case 3:
          candidates.member[i] = true;
          break;
        default:
          candidates.member[i] = false;
          draw.erase(i);
          twin.erase(i);
      }
      if (candidates.eligible(i)) {
        draw.push(i);
        twin.push(i);
      }
      const std::size_t count = candidates.count();
      REQUIRE(draw.size() >= count);
      std::vector<std::uint32_t> seen;
      const auto victim = candidates.draw(draw, &seen);
      REQUIRE(victim.has_value() == (count > 0));
      REQUIRE(candidates.draw(twin) == victim);
      REQUIRE(draw.size() == twin.size());
      if (victim) {
        const auto least =
            std::ranges::min_element(seen, {}, [&](std::uint32_t c) { return std::pair(candidates.value[c], c); });
        REQUIRE(*victim == *least);
        if (count <= static_cast<std::size_t>(draws) && draw.size() <= static_cast<std::size_t>(draws))
          REQUIRE(candidates.before(*victim) == 0);
      }
      draw.check_invariants();
    }
  });
}

TEST_CASE("candidates that lost a draw stand in the next one") {
  constexpr std::uint32_t n = 4000;
  VictimDraw<VictimKey> draw(32, n);
  Candidates candidates(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    candidates.value[i] = static_cast<std::int32_t>((i * 2654435761U) % n);
    candidates.member[i] = true;
    draw.push(i);
  }
  std::vector<std::size_t> ranks;
  for (int victim = 0; victim < 1000; ++victim) {
    const auto least = candidates.draw(draw);
    REQUIRE(least.has_value());
    ranks.push_back(candidates.before(*least));
    candidates.member[*least] = false;
    draw.erase(*least);
  }
  // The smallest of 32 is the 121st on average; with the best of earlier draws it is far before that.
  std::ranges::nth_element(ranks, ranks.begin() + 500);
  CHECK(ranks[500] < n / 64);
}

TEST_CASE("kept candidates give way to drawn ones when all kept ones have grown") {
  constexpr std::uint32_t n = 400;
  VictimDraw<VictimKey> draw(8, n);
  Candidates candidates(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    candidates.value[i] = static_cast<std::int32_t>(i);
    candidates.member[i] = true;
    draw.push(i);
  }
  for (int victim = 0; victim < 50; ++victim) REQUIRE(candidates.draw(draw).has_value());
  // The best of then are the worst now.
  for (std::uint32_t i = 0; i < n; ++i) candidates.value[i] = static_cast<std::int32_t>(2 * n - i);
  std::vector<std::uint32_t> seen;
  const auto victim = candidates.draw(draw, &seen);
  CHECK(victim == std::ranges::max(seen));
  CHECK(*victim > n / 2);
}

TEST_CASE("locked candidates are dropped once and come back with their unlock") {
  constexpr std::uint32_t n = 1000;
  VictimDraw<VictimKey> draw(8, n);
  Candidates candidates(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    candidates.value[i] = static_cast<std::int32_t>(i);
    candidates.member[i] = true;
    candidates.locked[i] = i != 500;
    draw.push(i);
  }
  CHECK(candidates.draw(draw) == 500u);
  candidates.locked[3] = false;
  draw.push(3);
  CHECK(draw.size() <= 9);
  CHECK(candidates.draw(draw) == 3u);
}

TEST_CASE("a draw announces the candidates of the next ones, and answers as if it had not") {
  constexpr std::uint32_t n = 6000;
  constexpr std::int32_t draws = 16;
  VictimDraw<VictimKey> draw(draws, n);
  VictimDraw<VictimKey> silent(draws, n);
  Candidates candidates(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    candidates.value[i] = static_cast<std::int32_t>((i * 2654435761U) % n);
    if (i % 100 == 0) continue;  // to be added
    candidates.member[i] = true;
    draw.push(i);
    silent.push(i);
  }
  std::vector<std::uint32_t> reported, told_before;
  std::size_t foreseen = 0;
  constexpr std::uint32_t victims = 50;
  for (std::uint32_t count = 0; count < victims; ++count) {
    std::optional<std::uint32_t> removed;
    std::vector<std::uint32_t> compared;
    told_before.swap(reported);
    reported.clear();
    const auto victim = draw.draw([&](std::uint32_t i) { return candidates.eligible(i); },
                                  [&](std::uint32_t i) {
                                    compared.push_back(i);
                                    return candidates.key(i);
                                  },
                                  [&](std::uint32_t i, VictimFetch what) {
                                    REQUIRE(i < n);
                                    if (what == VictimFetch::key)
                                      reported.push_back(i);
                                    else if (!removed)
                                      removed = i;
                                  });
    REQUIRE(victim == candidates.draw(silent));
    REQUIRE(removed == victim);
    for (const std::uint32_t i : std::span(compared).first(draws)) foreseen += std::ranges::count(told_before, i) > 0;
    candidates.member[*victim] = false;
    candidates.member[count * 100] = true;
    for (auto* of : {&draw, &silent}) {
      of->erase(*victim);
      of->push(count * 100);
      of->check_invariants();
    }
  }
  // The first draw was not announced, and a candidate that a removal moves may miss its turn.
  CHECK(foreseen > (victims - 3) * draws);
}
