// SPDX-License-Identifier: Apache-2.0
#include "file/image_directory.hpp"

#include "file_images.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>

namespace stateport {
namespace {

using namespace test;

TEST_CASE("keys that differ little have hashes that differ in their low bits") {
  // A hash map of keys with equal hashes grows until memory ends.
  constexpr std::uint64_t numbers = 2000;
  const auto buckets_used = [](auto&& key_of) {
    std::set<std::size_t> buckets;
    for (std::uint64_t i = 0; i < numbers; ++i) buckets.insert(ImageKeyHash()(key_of(i)) % (8 * numbers));
    return buckets.size();
  };
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.prefix = {{i, i}}}; }) > numbers * 8 / 10);
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.prefix = {{i, 0}}}; }) > numbers * 8 / 10);
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.prefix = {{0, i}}}; }) > numbers * 8 / 10);
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.prefix = {{i, ~i}}}; }) > numbers * 8 / 10);
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.tokens = static_cast<std::int64_t>(16 * i)}; }) >
        numbers * 8 / 10);
  CHECK(buckets_used([](std::uint64_t i) { return ImageKey{.group = static_cast<std::int32_t>(i)}; }) >
        numbers * 8 / 10);
  CHECK(ImageKeyHash()(state_key(1)) != ImageKeyHash()(kv_key(1)));
}

TEST_CASE("images whose keys have one hash are told apart") {
  // What the first word leaves of the hash, the second one undoes.
  const auto spread = [](std::uint64_t word) {
    const std::uint64_t hash = word * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
  };
  const auto layouts = small_layouts();
  ImageDirectory directory(true);
  constexpr std::uint64_t keys = 20;
  const auto key_of = [&](std::uint64_t i) { return ImageKey{.prefix = {{i, spread(i)}}, .tokens = 16}; };
  for (std::uint64_t i = 0; i < keys; ++i) {
    REQUIRE(ImageKeyHash()(key_of(i)) == ImageKeyHash()(key_of(0)));
    directory.reserve(1, 1);
    const FileIndex file = directory.add_file({std::to_string(i), 1}, layouts[0].image_bytes(), 0, false);
    directory.add_image(file, key_of(i), layouts[0], 0);
  }
  for (std::uint64_t i = 0; i < keys; i += 2) CHECK(directory.remove(key_of(i)));
  for (std::uint64_t i = 0; i < 2 * keys; ++i) {
    const ImageDirectory::Place* place = directory.find(key_of(i));
    REQUIRE((place != nullptr) == (i % 2 == 1 && i < keys));
    if (place != nullptr) CHECK(directory.name(place->file) == std::to_string(i));
  }
}

}  // namespace
}  // namespace stateport
