// SPDX-License-Identifier: Apache-2.0
#include "evict/known_positions.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

using stateport::KnownPositions;
using stateport::PositionKey;
using stateport::test::for_each_seed;
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
