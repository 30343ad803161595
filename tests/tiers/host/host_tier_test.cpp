// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/host_tier.hpp>

#include <stateport/backends/host_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "limit_resource.hpp"
#include "move/transfer_keys.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

using namespace stateport;
using test::kv_image;
using test::LimitResource;
using test::Random;
using test::state_image;
using State = HostTier::State;

namespace {

constexpr std::size_t host_page = 4096;

/// Frames of 4 pages: one state, or two of a second group, or four blocks.
HostTierOptions small_options(std::size_t frames, std::size_t staging_frames = 0) {
  return {.budget_bytes = frames * 4 * host_page,
          .staging_bytes = staging_frames * 4 * host_page,
          .state_image_bytes = {4 * host_page, 2 * host_page},
          .kv_image_bytes = host_page};
}

}  // namespace

TEST_CASE("an image is found while it is copying and ready, and not when it is leaving") {
  HostResource memory;
  HostTier tier(memory, small_options(2));
  const HostImage image = tier.reserve(state_image(1)).value();
  CHECK(tier.state(image) == State::copying);
  CHECK(tier.find(state_image(1)) == image);
  CHECK(tier.publish(image));
  CHECK_FALSE(tier.publish(image));
  CHECK(tier.state(image) == State::ready);
  tier.pin(image);
  CHECK(tier.remove(image));
  CHECK_FALSE(tier.remove(image));
  CHECK(tier.state(image) == State::leaving);
  CHECK_FALSE(tier.find(state_image(1)).valid());
  CHECK(tier.room(0) == 1);
  // Its reader still finds it, and a new image may have its key.
  CHECK(tier.key(image) == state_image(1));
  const HostImage again = tier.reserve(state_image(1)).value();
  CHECK(tier.place(again) != tier.place(image));
  tier.check_invariants();
  tier.unpin(image);
  CHECK(tier.state(image) == State::gone);
  CHECK(tier.find(state_image(1)) == again);
  CHECK(tier.room(0) == 1);
  CHECK_THROWS_AS(tier.unpin(image), InvalidArgument);
  CHECK_THROWS_AS(tier.unpin(again), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(tier.bytes(image)), InvalidArgument);
  tier.check_invariants();
}

TEST_CASE("a name of an image that is gone names nothing, also when its record is used again") {
  HostResource memory;
  HostTier tier(memory, small_options(1));
  const HostImage old = tier.reserve(state_image(1)).value();
  CHECK(tier.remove(old));
  const HostImage other = tier.reserve(state_image(2)).value();
  CHECK(other.index == old.index);
  CHECK(tier.state(old) == State::gone);
  CHECK_FALSE(tier.publish(old));
  CHECK_FALSE(tier.remove(old));
  CHECK(tier.state(other) == State::copying);
}

TEST_CASE("a full tier reserves nothing, and a frame serves every size when it is empty") {
  HostResource memory;
  HostTier tier(memory, small_options(2));
  CHECK(tier.capacity(0) == 2);
  CHECK(tier.capacity(1) == 4);
  CHECK(tier.capacity(2) == 8);
  std::vector<HostImage> blocks;
  for (std::uint64_t i = 0; i < 5; ++i) blocks.push_back(tier.reserve(kv_image(i)).value());
  CHECK_FALSE(tier.reserve(state_image(1)).has_value());
  CHECK_FALSE(tier.reserve(state_image(1, 1)).has_value());
  CHECK(tier.room(2) == 3);
  CHECK(tier.usage().image_bytes == 5 * host_page);
  // Two frames hold one kind each: the last block alone keeps the second from the states.
  CHECK(tier.remove(blocks[4]));
  CHECK(tier.reserve(state_image(1)).has_value());
  CHECK(tier.usage().images == 5);
  tier.check_invariants();
}

TEST_CASE("a place of a kind is base plus place times stride, aligned for direct transfers") {
  HostResource memory;
  HostTier tier(memory, small_options(3, 1));
  std::vector<HostTier> tiny;
  for (int i = 0; i < 8; ++i) {
    tiny.emplace_back(memory, HostTierOptions{.budget_bytes = host_page, .kv_image_bytes = host_page});
    CHECK(reinterpret_cast<std::uintptr_t>(tiny.back().data()) % host_page == 0);
  }
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  std::vector<HostImage> images{tier.reserve(state_image(1)).value(), tier.reserve(state_image(1, 1)).value(),
                                tier.reserve(state_image(2, 1)).value(), tier.reserve(kv_image(1)).value(),
                                tier.reserve_staging(kv_image(1)).value()};
  for (const HostImage image : images) {
    const std::int32_t kind = tier.kind_of(tier.key(image));
    const std::span<std::byte> bytes = tier.bytes(image);
    CHECK(bytes.data() == tier.data() + static_cast<std::size_t>(tier.place(image)) * tier.stride_bytes(kind));
    CHECK(tier.place(image) < tier.places(kind));
    ranges.emplace_back(bytes.data(), bytes.data() + bytes.size());
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
  CHECK(ranges.back().second <= tier.data() + 4 * tier.frame_bytes());
}

TEST_CASE("staging is beside the budget, is never found, and goes with its reader") {
  HostResource memory;
  HostTier tier(memory, small_options(1, 1));
  const HostImage image = tier.reserve(state_image(1)).value();
  const HostImage first = tier.reserve_staging(kv_image(1)).value();
  const HostImage second = tier.reserve_staging(kv_image(1)).value();
  CHECK_FALSE(tier.find(kv_image(1)).valid());
  CHECK_FALSE(tier.reserve_staging(state_image(2)).has_value());
  CHECK(tier.staging_room(2) == 2);
  CHECK(tier.usage().images == 1);
  CHECK(tier.usage().staging_images == 2);
  tier.check_invariants();
  tier.unpin(first);
  CHECK(tier.publish(second));
  tier.unpin(second);
  CHECK(tier.state(second) == State::gone);
  CHECK(tier.reserve_staging(state_image(2)).has_value());
  CHECK(tier.state(image) == State::copying);
  tier.check_invariants();
}

TEST_CASE("a host tier without room holds nothing") {
  HostResource memory;
  HostTier tier(memory, {.state_image_bytes = {host_page}});
  CHECK(tier.places(0) == 0);
  CHECK_FALSE(tier.reserve(state_image(1)).has_value());
  CHECK_FALSE(tier.reserve_staging(state_image(1)).has_value());
  CHECK_FALSE(tier.find(state_image(1)).valid());
  tier.check_invariants();
}

TEST_CASE("bad options, groups and keys are refused by name, and memory that is not there is told") {
  HostResource memory;
  const auto refuses = [&](const HostTierOptions& options, const char* argument) {
    CHECK_THROWS_WITH_AS(HostTier(memory, options), doctest::Contains(argument), InvalidArgument);
  };
  refuses({.budget_bytes = host_page}, "state_image_bytes = empty");
  refuses({.budget_bytes = host_page, .state_image_bytes = {0}}, "state_image_bytes = 0");
  refuses({.budget_bytes = host_page, .state_image_bytes = {host_page + 1}}, "state_image_bytes = 4097");
  refuses({.budget_bytes = host_page, .kv_image_bytes = 100}, "kv_image_bytes = 100");
  refuses({.budget_bytes = 4 * host_page - 1, .state_image_bytes = {4 * host_page}}, "budget_bytes = 16383");
  refuses({.budget_bytes = std::size_t{1} << 44, .kv_image_bytes = host_page}, "budget_bytes = 17592186044416");
  LimitResource limited(memory, 3 * host_page);
  CHECK_THROWS_AS(HostTier(limited, small_options(1)), OutOfMemory);

  HostTier tier(memory, {.budget_bytes = 8 * host_page, .state_image_bytes = {4 * host_page}});
  CHECK_THROWS_WITH_AS(static_cast<void>(tier.reserve(state_image(1, 1))), doctest::Contains("image.group = 1"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(tier.reserve(kv_image(1))), doctest::Contains("kv_block"), InvalidArgument);
  static_cast<void>(tier.reserve(state_image(1)));
  CHECK_THROWS_AS(static_cast<void>(tier.reserve(state_image(1))), InvalidArgument);
  std::vector<HostImage> images(2);
  const ImageKey key = state_image(1);
  CHECK_THROWS_AS(tier.lookup({&key, 1}, images), InvalidArgument);
  tier.check_invariants();
}

TEST_CASE("a lookup answers every key, those that differ in one field included") {
  HostResource memory;
  // Nearly full, so that some images are not in the first bucket of a search.
  HostTier tier(
      memory,
      {.budget_bytes = 1340 * host_page, .state_image_bytes = {host_page, host_page}, .kv_image_bytes = host_page});
  std::vector<ImageKey> keys;
  for (std::uint64_t i = 0; i < 400; ++i) {
    keys.push_back(state_image(i));
    keys.push_back(state_image(i, 1));
    keys.push_back(kv_image(i));
    keys.push_back(state_image(i));
    keys.back().tokens = 17;
    keys.push_back(state_image(i));
    keys.back().prefix.words[1] = 8;
  }
  // Pairs of equal hashes.
  keys.push_back({.prefix = {{1000, 0}}, .tokens = 16});
  keys.push_back({.prefix = {{1000 ^ 0xC2B2AE3D27D4EB4F, 1}}, .tokens = 16});
  keys.push_back({.prefix = {{3000, 0}}, .tokens = 16, .group = 1});
  keys.push_back({.prefix = {{3000, 0}}, .tokens = 16 + (1 << 24)});
  std::vector<HostImage> expected;
  for (std::size_t i = 0; i < keys.size(); ++i)
    expected.push_back(i % 3 == 0 ? HostImage{} : tier.reserve(keys[i]).value());
  std::vector<HostImage> images(keys.size(), {.index = 7, .version = 7});
  CHECK(tier.lookup(keys, images) == std::ranges::count_if(expected, &HostImage::valid));
  CHECK(images == expected);
}

namespace {
ImageKey random_key(Random& random) {
  const auto prefix = static_cast<std::uint64_t>(random.between(0, 12));
  return random.chance(50) ? kv_image(prefix) : state_image(prefix, random.between32(0, 1));
}
}  // namespace

TEST_CASE("images whose keys have one hash in the index are told apart") {
  HostResource memory;
  HostTier tier(memory, small_options(20));
  // The index mixes the words as word 0 ^ word 1 * factor: for all of these that is one number.
  const auto key_of = [](std::uint64_t i) {
    constexpr std::uint64_t factor = 0xC2B2AE3D27D4EB4F;
    return ImageKey{.prefix = {{12345 ^ i * factor, i}}, .tokens = 16};
  };
  std::vector<HostImage> images;
  for (std::uint64_t i = 0; i < 20; ++i) images.push_back(tier.reserve(key_of(i)).value());
  for (std::uint64_t i = 0; i < 20; i += 2) CHECK(tier.remove(images[i]));
  for (std::uint64_t i = 0; i < 40; ++i) {
    const HostImage found = tier.find(key_of(i));
    REQUIRE(found.valid() == (i % 2 == 1 && i < 20));
    if (found.valid()) CHECK(found == images[i]);
  }
  tier.check_invariants();
}

TEST_CASE("random lives of images agree with a model") {
  test::for_each_seed(150, [](Random& random, std::uint64_t) {
    HostResource memory;
    HostTier tier(memory, small_options(static_cast<std::size_t>(random.between(1, 5)), 1));
    struct Held {
      ImageKey key;
      State state;
      int readers;
      std::byte mark;
    };
    std::map<std::uint32_t, std::pair<HostImage, Held>> model;
    std::vector<HostImage> gone;
    for (int step = 0; step < 400; ++step) {
      const auto forget = [&](std::uint32_t index) {
        gone.push_back(model.at(index).first);
        model.erase(index);
      };
      const ImageKey key = random_key(random);
      const auto known = std::ranges::find_if(model, [&](const auto& entry) {
        return entry.second.second.key == key && entry.second.second.state != State::leaving;
      });
      REQUIRE(tier.find(key) == (known == model.end() ? HostImage{} : known->second.first));
      if (known == model.end()) {
        const std::int64_t room = tier.room(tier.kind_of(key));
        const auto image = tier.reserve(key);
        REQUIRE(image.has_value() == (room > 0));
        if (image) {
          const auto mark = static_cast<std::byte>(step);
          std::ranges::fill(tier.bytes(*image), mark);
          REQUIRE(model.emplace(image->index, std::pair{*image, Held{key, State::copying, 0, mark}}).second);
        }
      }
      if (!model.empty()) {
        auto entry = model.begin();
        std::advance(entry, random.between(0, static_cast<std::int64_t>(model.size()) - 1));
        auto& [image, held] = entry->second;
        switch (random.between(0, 3)) {
          case 0:
            REQUIRE(tier.publish(image) == (held.state == State::copying));
            if (held.state == State::copying) held.state = State::ready;
            break;
          case 1:
            tier.pin(image);
            ++held.readers;
            break;
          case 2:
            if (held.readers == 0) break;
            tier.unpin(image);
            if (--held.readers == 0 && held.state == State::leaving) forget(entry->first);
            break;
          default:
            REQUIRE(tier.remove(image) == (held.state != State::leaving));
            held.state = State::leaving;
            if (held.readers == 0) forget(entry->first);
        }
      }
      for (const auto& [index, entry] : model) {
        REQUIRE(tier.state(entry.first) == entry.second.state);
        REQUIRE(tier.key(entry.first) == entry.second.key);
        // No other image lies on its bytes.
        const auto bytes = tier.bytes(entry.first);
        REQUIRE(std::ranges::count(bytes, entry.second.mark) == std::ssize(bytes));
      }
      for (const HostImage image : gone) REQUIRE(tier.state(image) == State::gone);
      tier.check_invariants();
    }
  });
}

TEST_CASE("nothing is allocated after construction") {
  HostResource memory;
  HostTier tier(memory, small_options(20, 2));
  const std::uint64_t before = test::heap_allocations();
  bool all = true;
  for (std::uint64_t round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < 80; ++i) all = tier.publish(tier.reserve(kv_image(i)).value()) && all;
    for (std::uint64_t i = 0; i < 80; ++i) all = tier.remove(tier.find(kv_image(i))) && all;
  }
  CHECK(all);
  CHECK(test::heap_allocations() == before);
}

TEST_CASE("a tier that has no memory for its records is not made, and keeps none of its images' memory") {
  HostResource memory;
  LimitResource just_enough(memory, std::size_t{22} * 4 * host_page);
  std::optional<HostTier> tier;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { tier.emplace(just_enough, small_options(20, 2)); },
                                   [](std::uint64_t) {}) > 5);
  for (std::uint64_t i = 0; i < 80; ++i) REQUIRE(tier->reserve(kv_image(i)));
  // Who asks for all keys and has no memory for them changes nothing.
  std::vector<ImageKey> keys;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { keys = tier->keys(); },
                                   [&](std::uint64_t) { tier->check_invariants(); }) > 0);
  CHECK(keys.size() == 80);
  CHECK(tier->usage().images == 80);
}
