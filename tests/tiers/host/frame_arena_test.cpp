// SPDX-License-Identifier: Apache-2.0
#include "host/frame_arena.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

using namespace stateport;
using test::Random;
using tiers::choose_frames;
using tiers::FrameArena;
using tiers::FrameSizes;

namespace {

constexpr std::size_t frame_page = 4096;

std::vector<std::size_t> pages(std::vector<std::size_t> counts) {
  for (std::size_t& count : counts) count *= frame_page;
  return counts;
}

std::vector<std::int32_t> places_of(const FrameSizes& sizes) {
  std::vector<std::int32_t> places;
  for (std::size_t kind = 0; kind < sizes.strides.size(); ++kind) places.push_back(sizes.places(kind));
  return places;
}

}  // namespace

TEST_CASE("one size has frames of one image, and a small one divides the frame of a large one") {
  CHECK(choose_frames(pages({7})).frame_bytes == 7 * frame_page);
  const FrameSizes sizes = choose_frames(pages({25601, 17}));
  CHECK(sizes.frame_bytes == 25602 * frame_page);
  CHECK(places_of(sizes) == std::vector<std::int32_t>{1, 1506});
  CHECK(places_of(choose_frames(pages({100, 50, 25}))) == std::vector<std::int32_t>{1, 2, 4});
}

TEST_CASE("strides divide the frame, hold the image and waste less than a sixteenth or one small image") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    const auto large = static_cast<std::size_t>(random.between(1, 3000));
    const auto small = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(large)));
    const std::vector<std::size_t> images = pages({large, small});
    const FrameSizes sizes = choose_frames(images);
    REQUIRE(sizes.frame_bytes <= std::max(large + large / 16, large + small - 1) * frame_page);
    for (std::size_t kind = 0; kind < images.size(); ++kind) {
      REQUIRE(sizes.strides[kind] >= images[kind]);
      REQUIRE(sizes.strides[kind] % frame_page == 0);
      REQUIRE(sizes.frame_bytes % sizes.strides[kind] == 0);
    }
    // A small image fills its stride but for the share of one image.
    if (small * 20 <= large)
      REQUIRE(static_cast<double>(small) >= 0.95 * static_cast<double>(sizes.strides[1] / frame_page));
  });
}

TEST_CASE("a frame holds one kind, and any kind again when it is empty") {
  const std::vector<std::int32_t> places{1, 4};
  FrameArena arena(0, 2, places);
  CHECK(arena.room(0) == 2);
  CHECK(arena.room(1) == 8);
  const std::vector<std::int32_t> small{*arena.take(1), *arena.take(1), *arena.take(1)};
  CHECK(small == std::vector<std::int32_t>{0, 1, 2});
  CHECK(arena.take(0) == 1);
  CHECK(arena.take(0) == std::nullopt);
  CHECK(arena.room(1) == 1);
  arena.give(1, 1);
  CHECK(arena.take(0) == std::nullopt);
  arena.give(1, 0);
  arena.give(1, 2);
  CHECK(arena.take(0) == 0);
  CHECK(arena.take(1) == std::nullopt);
}

TEST_CASE("the places of one run lie in one frame, and then in the fullest") {
  const std::vector<std::int32_t> places{8};
  FrameArena arena(0, 3, places);
  for (std::int32_t i = 0; i < 24; ++i) CHECK(arena.take(0) == i);
  for (const std::int32_t place : {0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 18, 19}) arena.give(0, place);
  // Frame 2 was the last that a place was taken from; then frame 1, of which six are used, before frame 0 with two.
  std::vector<std::int32_t> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(*arena.take(0));
  CHECK(taken == std::vector<std::int32_t>{16, 17, 18, 19, 8, 9, 0, 1});
}

TEST_CASE("random takes and gives agree with a set of places") {
  test::for_each_seed(200, [](Random& random, std::uint64_t) {
    const std::vector<std::int32_t> places{1, random.between32(1, 6), random.between32(60, 140)};
    const std::int32_t first = random.between32(0, 3), frames = random.between32(1, 6);
    FrameArena arena(first, frames, places);
    std::set<std::pair<std::size_t, std::int32_t>> model;
    for (int step = 0; step < 300; ++step) {
      const auto kind = static_cast<std::size_t>(random.between(0, 2));
      if (random.chance(60)) {
        const std::int32_t room = arena.room(kind);
        const auto place = arena.take(kind);
        REQUIRE(place.has_value() == (room > 0));
        if (place) {
          REQUIRE(*place / places[kind] >= first);
          REQUIRE(*place / places[kind] < first + frames);
          REQUIRE(model.emplace(kind, *place).second);
        }
      } else if (!model.empty()) {
        auto victim = model.begin();
        std::advance(victim, random.between(0, static_cast<std::int64_t>(model.size()) - 1));
        arena.give(victim->first, victim->second);
        model.erase(victim);
      }
      // Frames of one kind hold no place of another.
      for (const auto& [held, place] : model)
        for (const auto& [other, its] : model)
          if (held != other) REQUIRE(place / places[held] != its / places[other]);
      arena.check_invariants([&](std::size_t of, std::int32_t place) { return model.contains({of, place}); });
    }
  });
}
