// SPDX-License-Identifier: Apache-2.0
#include "image_directory.hpp"

#include "file_images.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>

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

}  // namespace
}  // namespace stateport
