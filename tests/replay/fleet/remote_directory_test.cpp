// SPDX-License-Identifier: Apache-2.0
#include "fleet/remote_directory.hpp"

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace stateport;
using namespace stateport::replay;
using Put = RemoteDirectory::Put;

namespace {

ImageKey key(std::uint64_t number, CacheContent content = CacheContent::state) {
  return {.prefix = {{number, 7}}, .tokens = 4, .content = content};
}

/// The oldest first.
struct Model {
  struct Image {
    ImageKey key;
    std::int64_t bytes = 0;
  };
  std::int64_t capacity = 0;
  std::vector<Image> images;

  bool get(const ImageKey& wanted) {
    const auto found = std::ranges::find(images, wanted, &Image::key);
    if (found == images.end()) return false;
    std::rotate(found, found + 1, images.end());
    return true;
  }
  Put put(const ImageKey& wanted, std::int64_t bytes) {
    if (get(wanted)) return Put::was_there;
    if (bytes > capacity) return Put::no_room;
    images.push_back({wanted, bytes});
    while (used() > capacity) images.erase(images.begin());
    return Put::added;
  }
  [[nodiscard]] std::int64_t used() const {
    std::int64_t sum = 0;
    for (const Image& image : images) sum += image.bytes;
    return sum;
  }
};

}  // namespace

TEST_CASE("a remote directory keeps the images that were written or read last") {
  RemoteDirectory directory(10);
  CHECK(directory.put(key(1), 4) == Put::added);
  CHECK(directory.put(key(1, CacheContent::kv_block), 4) == Put::added);
  CHECK(directory.get(key(1)));
  CHECK(directory.put(key(2), 4) == Put::added);
  CHECK(directory.has(key(1)));
  CHECK_FALSE(directory.has(key(1, CacheContent::kv_block)));
  CHECK(directory.put(key(1), 4) == Put::was_there);
  CHECK(directory.put(key(3), 11) == Put::no_room);
  CHECK(directory.images() == 2);
  CHECK(directory.bytes() == 8);
  CHECK(directory.counts().added_bytes == 12);
  CHECK(directory.counts().evicted_images == 1);
}

TEST_CASE("a remote directory without room takes nothing, and one with less than none is refused") {
  RemoteDirectory directory(0);
  CHECK(directory.put(key(1), 1) == Put::no_room);
  CHECK_FALSE(directory.get(key(1)));
  CHECK_THROWS_AS(RemoteDirectory(-1), InvalidArgument);
}

TEST_CASE("a remote directory agrees with a list") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Model model{.capacity = static_cast<std::int64_t>(random() % 60), .images = {}};
    RemoteDirectory directory(model.capacity);
    for (int step = 0; step < 100; ++step) {
      const std::uint64_t number = random() % 30;
      const ImageKey image = key(number, number % 2 == 0 ? CacheContent::state : CacheContent::kv_block);
      const auto bytes = static_cast<std::int64_t>(1 + number % 9);
      if (random() % 3 == 0)
        REQUIRE(directory.get(image) == model.get(image));
      else
        REQUIRE(directory.put(image, bytes) == model.put(image, bytes));
      directory.check_invariants();
      REQUIRE(directory.bytes() == model.used());
      for (const Model::Image& each : model.images) REQUIRE(directory.has(each.key));
      REQUIRE(directory.images() == std::ssize(model.images));
    }
  }
}
