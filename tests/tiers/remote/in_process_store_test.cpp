// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/in_process_store.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "remote_store_conformance.hpp"

#include <doctest/doctest.h>

#include <array>
#include <list>
#include <memory>
#include <optional>
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
        const Completion got = get(store, key, read);
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

TEST_CASE("calls of an in-process store that run out of memory change nothing") {
  std::uint64_t failures = 0;
  int without_memory = 0;
  for_each_seed(20, [&](Random& random, std::uint64_t) {
    constexpr std::uint64_t capacity = 100;
    const auto objects = std::make_shared<InProcessObjects>(capacity);
    std::optional<InProcessStore> made;
    failures += fail_each_allocation([&](std::uint64_t) { made.emplace(objects); }, [](std::uint64_t) {});
    InProcessStore& store = *made;
    Model model(capacity);
    const auto call = [&](auto&& body) {
      bool through = false;
      failures += fail_each_allocation(
          [&](std::uint64_t) {
            body();
            through = true;
          },
          [&](std::uint64_t) {
            if (through) return;
            REQUIRE(objects->keys() == model.keys());
            objects->check_invariants();
          });
    };
    for (int step = 0; step < 60; ++step) {
      const std::string key = "a-key-that-is-longer-than-small-ones-" + std::to_string(random.between(1, 12));
      auto bytes = bytes_of_seed(static_cast<std::uint64_t>(step), static_cast<std::size_t>(random.between(1, 60)));
      std::vector<std::byte> into(60);
      const std::int64_t what = random.between(0, 3);
      const RemotePiece piece = what == 0 ? RemotePiece{bytes.data(), bytes.size()} : RemotePiece{into.data(), 60};
      const RemoteObject object{static_cast<std::uint64_t>(step), key, {&piece, 1}};
      const RemoteKey named{static_cast<std::uint64_t>(step), key};
      bool accepted = false;
      call([&] {
        accepted = what == 0   ? store.put_from({&object, 1})
                   : what == 1 ? store.get_into({&object, 1})
                   : what == 2 ? store.exists({&named, 1})
                               : store.remove({&named, 1});
      });
      REQUIRE(accepted);
      std::array<Completion, 2> answers;
      std::size_t count = 0;
      call([&] { count = store.poll(answers); });
      REQUIRE(count == 1);
      CHECK(answers[0].ticket == named.ticket);
      TransferStatus status = answers[0].status;
      const std::vector<std::string> before = model.keys();
      const bool held = std::ranges::find(before, key) != before.end();
      if (what == 0) {
        // An object that there is no memory for has no room.
        if (status == TransferStatus::no_room) {
          ++without_memory;
          REQUIRE(objects->keys() == before);
          status = put(store, key, bytes);
        }
        CHECK(status == model.put(key, bytes));
      } else {
        CHECK(status == (held ? TransferStatus::done : TransferStatus::gone));
      }
      if (what == 1 && held) {
        into.resize(answers[0].bytes);
        CHECK(into == *model.touch(key));
      }
      if (what == 3) CHECK(model.erase(key) == held);
      CHECK(objects->keys() == model.keys());
      CHECK(objects->held_bytes() == model.held());
    }
  });
  CHECK(failures > 1000);
  CHECK(without_memory > 0);
}

TEST_CASE("an object that there is no memory for evicts nothing") {
  InProcessObjects objects(100);
  std::vector<std::byte> bytes = bytes_of_seed(1, 60);
  const auto put = [&](const char* key, std::size_t size) {
    const RemotePiece piece{bytes.data(), size};
    return objects.put(key, {&piece, 1});
  };
  CHECK(put("first", 40) == TransferStatus::done);
  CHECK(put("second", 40) == TransferStatus::done);
  std::uint64_t failed = 0;
  for (TransferStatus status = TransferStatus::no_room; status != TransferStatus::done;) {
    fail_heap_allocation(++failed);
    status = put("a-third-one-with-a-long-name", 60);
    fail_heap_allocation(0);
    objects.check_invariants();
    if (status == TransferStatus::done) break;
    CHECK(status == TransferStatus::no_room);
    CHECK(objects.keys() == std::vector<std::string>{"first", "second"});
  }
  CHECK(failed > 3);
  CHECK(objects.keys() == std::vector<std::string>{"second", "a-third-one-with-a-long-name"});
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
