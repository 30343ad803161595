// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/in_process_store.hpp>

#include <stateport/core/model/error.hpp>

#include "random.hpp"
#include "remote_store_conformance.hpp"

#include <doctest/doctest.h>

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

MakeStore clients_of(const std::shared_ptr<InProcessObjects>& objects, bool needs_registration) {
  return [=](const RemoteQueueLimits& limits) -> std::unique_ptr<RemoteStore> {
    return std::make_unique<InProcessStore>(
        objects, InProcessStoreOptions{.limits = limits, .needs_registration = needs_registration});
  };
}

/// Objects by key, the least recently used first, as a plain list.
class Model {
 public:
  explicit Model(std::uint64_t capacity) : capacity_(capacity) {}

  TransferStatus put(const std::string& key, const std::vector<std::byte>& bytes) {
    if (touch(key)) return TransferStatus::done;
    if (bytes.size() > capacity_) return TransferStatus::no_room;
    while (held() + bytes.size() > capacity_) objects_.pop_front();
    objects_.emplace_back(key, bytes);
    return TransferStatus::done;
  }
  const std::vector<std::byte>* touch(const std::string& key) {
    for (auto object = objects_.begin(); object != objects_.end(); ++object) {
      if (object->first != key) continue;
      objects_.splice(objects_.end(), objects_, object);
      return &objects_.back().second;
    }
    return nullptr;
  }
  bool erase(const std::string& key) {
    return std::erase_if(objects_, [&](const auto& object) { return object.first == key; }) > 0;
  }
  [[nodiscard]] std::uint64_t held() const {
    std::uint64_t bytes = 0;
    for (const auto& object : objects_) bytes += object.second.size();
    return bytes;
  }
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> keys;
    for (const auto& object : objects_) keys.push_back(object.first);
    return keys;
  }

 private:
  std::uint64_t capacity_;
  std::list<std::pair<std::string, std::vector<std::byte>>> objects_;
};

TEST_CASE("an in-process store conforms") {
  const auto objects = std::make_shared<InProcessObjects>(gib);
  conforms(clients_of(objects, false));
  objects->check_invariants();
}

TEST_CASE("an in-process store that needs registered memory conforms") {
  const auto objects = std::make_shared<InProcessObjects>(gib);
  conforms(clients_of(objects, true));
  objects->check_invariants();
}

TEST_CASE("an in-process store behaves like a map") {
  for_each_seed(100, [](Random& random, std::uint64_t) {
    const auto objects = std::make_shared<InProcessObjects>(gib);
    behaves_like_a_map(clients_of(objects, random.chance(50)), random, 50);
    objects->check_invariants();
    CHECK(objects->held_bytes() == 0);
  });
}

TEST_CASE("the least recently used objects are evicted first") {
  for_each_seed(500, [](Random& random, std::uint64_t) {
    constexpr std::uint64_t capacity = 100;
    const auto objects = std::make_shared<InProcessObjects>(capacity);
    InProcessStore store(objects);
    Model model(capacity);
    for (int step = 0; step < 200; ++step) {
      const std::string key = "k" + std::to_string(random.between(1, 12));
      if (random.chance(50)) {
        const auto bytes =
            bytes_of_seed(static_cast<std::uint64_t>(step), static_cast<std::size_t>(random.between(1, 110)));
        CHECK(put(store, key, bytes) == model.put(key, bytes));
      } else if (random.chance(60)) {
        std::vector<std::byte> read(110);
        const RemoteCompletion got = get(store, key, read);
        const std::vector<std::byte>* expected = model.touch(key);
        CHECK((got.status == TransferStatus::done) == (expected != nullptr));
        if (!expected) continue;
        read.resize(got.bytes);
        CHECK(read == *expected);
      } else if (random.chance(50)) {
        CHECK((remove(store, key) == TransferStatus::done) == model.erase(key));
      } else {
        const std::vector<std::string> keys = model.keys();
        const bool held = std::ranges::find(keys, key) != keys.end();
        CHECK((exists(store, key) == TransferStatus::done) == held);
      }
      objects->check_invariants();
      CHECK(objects->keys() == model.keys());
      CHECK(objects->held_bytes() == model.held());
    }
  });
}

TEST_CASE("memory is read and written in poll, and in no other call") {
  const auto objects = std::make_shared<InProcessObjects>(gib);
  InProcessStore store(objects);
  std::vector<std::byte> memory(8, std::byte{1});
  const RemotePiece piece{memory.data(), memory.size()};
  const RemoteObject object{1, "key", {&piece, 1}};
  REQUIRE(store.put_from({&object, 1}));
  CHECK_FALSE(objects->contains("key"));
  memory.assign(8, std::byte{2});
  CHECK(answers_of(store, 1).front().status == TransferStatus::done);
  CHECK(objects->read("key") == memory);
}

TEST_CASE("objects can be damaged as others would") {
  InProcessObjects objects(10);
  std::vector<std::byte> bytes = bytes_of_seed(1, 6);
  const RemotePiece piece{bytes.data(), bytes.size()};
  CHECK_FALSE(objects.overwrite("a", bytes));
  CHECK(objects.put("a", {&piece, 1}) == TransferStatus::done);
  bytes[3] ^= std::byte{4};
  CHECK(objects.overwrite("a", bytes));
  CHECK(objects.read("a") == bytes);
  bytes.resize(11);
  CHECK_FALSE(objects.overwrite("a", bytes));
  bytes.resize(10);
  CHECK(objects.overwrite("a", bytes));
  CHECK(objects.held_bytes() == 10);
  CHECK(objects.read("b") == std::nullopt);
  objects.check_invariants();
}

TEST_CASE("a client without objects or with a queue of nothing is refused") {
  const auto objects = std::make_shared<InProcessObjects>(gib);
  CHECK_THROWS_AS(InProcessStore(nullptr), InvalidArgument);
  CHECK_THROWS_AS(InProcessStore(objects, {.limits = {.queue_bytes = 0}}), InvalidArgument);
  CHECK_THROWS_AS(InProcessStore(objects, {.limits = {.queue_requests = 0}}), InvalidArgument);
}

}  // namespace
}  // namespace stateport
