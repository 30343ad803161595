// SPDX-License-Identifier: Apache-2.0
#include "evict/known_positions.hpp"

#include "plain_tenants.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

using stateport::KnownPositions;
using stateport::PositionKey;
using stateport::test::for_each_seed;
using stateport::test::PlainTenants;
using stateport::test::Random;

namespace {

constexpr std::size_t capacity = 6;

/// Keys from the longest unused to the last used, and how often each is pinned.
struct Model {
  std::vector<PositionKey> used;
  std::map<PositionKey, int> pins;

  void use(PositionKey key) {
    if (pins[key] > 0) return;
    std::erase(used, key);
    used.push_back(key);
  }
};

/// Positions of tenants, of which the first has no floor. Keys from the longest unused to the last used.
struct SharedModel {
  explicit SharedModel(const std::vector<double>& floors) : tenants(floors) { positions.share(tenants); }

  [[nodiscard]] bool may_forget(PositionKey key, std::uint8_t account) const {
    const auto count =
        std::ranges::count_if(used, [&](PositionKey other) { return accounts.at(other) == accounts.at(key); });
    const bool is_over = static_cast<double>(count) > tenants.floor_shares[accounts.at(key)] * double{capacity};
    return is_over || (accounts.at(key) == account && !any_is_over());
  }
  [[nodiscard]] bool any_is_over() const {
    return std::ranges::any_of(used, [&](PositionKey key) {
      const auto count =
          std::ranges::count_if(used, [&](PositionKey other) { return accounts.at(other) == accounts.at(key); });
      return static_cast<double>(count) > tenants.floor_shares[accounts.at(key)] * double{capacity};
    });
  }
  void remember(PositionKey key, std::uint8_t account) {
    const KnownPositions::Position known = positions.find(key);
    REQUIRE((known != KnownPositions::none) == places.contains(key));
    if (known != KnownPositions::none) {
      positions.use(known);
      positions.give(known, account);
    } else if (!positions.is_full()) {
      places[key] = positions.add(key, account);
    } else {
      const auto oldest = std::ranges::find_if(used, [&](PositionKey other) { return may_forget(other, account); });
      REQUIRE(positions.oldest(account) == (oldest == used.end() ? KnownPositions::none : places[*oldest]));
      if (oldest == used.end()) return;
      forgotten_of[accounts[*oldest]] += accounts[*oldest] != account;
      places[key] = places[*oldest];
      places.erase(*oldest);
      positions.replace(places[key], key, account);
      used.erase(oldest);
    }
    std::erase(used, key);
    used.push_back(key);
    accounts[key] = account;
    positions.check_invariants({});
  }

  PlainTenants tenants;
  KnownPositions positions{capacity};
  std::vector<PositionKey> used;
  std::map<PositionKey, std::uint8_t> accounts;
  std::map<PositionKey, KnownPositions::Position> places;
  std::map<std::uint8_t, int> forgotten_of;  ///< by account, for others
};

}  // namespace

TEST_CASE("positions are known by key, and the longest unused one that is not pinned is forgotten") {
  for_each_seed(2000, [](Random& random, std::uint64_t) {
    KnownPositions positions(capacity);
    Model model;
    std::map<PositionKey, KnownPositions::Position> places;
    for (int step = 0; step < 60; ++step) {
      const auto key = static_cast<PositionKey>(random.between(1, 10));
      const auto known = positions.find(key);
      REQUIRE((known == KnownPositions::none) == !places.contains(key));
      if (known != KnownPositions::none) {
        REQUIRE(known == places[key]);
        const std::int64_t dice = random.between(0, 2);
        if (dice == 0) {
          positions.use(known);
          model.use(key);
        } else if (dice == 1) {
          positions.pin(known);
          ++model.pins[key];
          std::erase(model.used, key);
        } else if (model.pins[key] > 0) {
          positions.unpin(known);
          --model.pins[key];
          model.use(key);
        }
      } else if (!positions.is_full()) {
        places[key] = positions.add(key);
        model.use(key);
      } else if (model.used.empty()) {
        REQUIRE(positions.oldest() == KnownPositions::none);
      } else {
        const PositionKey oldest = model.used.front();
        REQUIRE(positions.oldest() == places[oldest]);
        positions.replace(places[oldest], key);
        places[key] = places[oldest];
        places.erase(oldest);
        model.used.erase(model.used.begin());
        model.use(key);
      }
      std::vector<KnownPositions::Position> pinned;
      for (const auto& [pinned_key, count] : model.pins)
        for (int i = 0; i < count; ++i) pinned.push_back(places[pinned_key]);
      positions.check_invariants(pinned);
      REQUIRE(positions.size() == places.size());
    }
  });
}

TEST_CASE("positions of a tenant within its floor's part are not forgotten for others, whoever was used last") {
  for_each_seed(1000, [](Random& random, std::uint64_t) {
    SharedModel model({0, random.chance(50) ? 0.5 : 0, random.chance(50) ? 0.34 : 0.5});
    for (int step = 0; step < 80; ++step)
      model.remember(static_cast<PositionKey>(random.between(1, 20)), static_cast<std::uint8_t>(random.between(0, 2)));
  });
  SharedModel flooded({0, 0.5});
  for (PositionKey key = 1; key <= 3; ++key) flooded.remember(key, 1);
  for (PositionKey key = 100; key <= 120; ++key) flooded.remember(key, 0);
  for (PositionKey key = 1; key <= 3; ++key) CHECK(flooded.positions.find(key) != KnownPositions::none);
  flooded.remember(4, 1);  // the flood pays, until its next position
  for (PositionKey key = 1; key <= 4; ++key) CHECK(flooded.positions.find(key) != KnownPositions::none);
  for (PositionKey key = 121; key <= 123; ++key) flooded.remember(key, 0);
  CHECK(flooded.positions.find(1) == KnownPositions::none);
  CHECK(flooded.positions.find(2) != KnownPositions::none);
}

TEST_CASE("a pinned position of a tenant counts, and goes with its tenant's account") {
  SharedModel model({0, 0.5});
  for (PositionKey key = 1; key <= 4; ++key) model.remember(key, 1);
  KnownPositions& positions = model.positions;
  positions.pin(model.places[1]);
  for (PositionKey key = 100; key <= 101; ++key) model.positions.add(key, 0);
  CHECK(positions.oldest(0) == model.places[2]);  // four of six are beyond the half
  positions.give(model.places[1], 0);
  CHECK(positions.oldest(0) == positions.find(100));
  positions.check_invariants(std::vector{model.places[1]});
  positions.unpin(model.places[1]);
  positions.check_invariants({});
}
