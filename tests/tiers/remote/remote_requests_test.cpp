// SPDX-License-Identifier: Apache-2.0
// Stores whose lanes have threads.
#include "remote/remote_requests.hpp"

#include <stateport/tiers/remote_tier.hpp>

#include "heap_counter.hpp"
#include "lane_store.hpp"
#include "random.hpp"
#include "remote_store_conformance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;
using enum TransferStatus;

constexpr std::uint64_t room_bytes = 1 << 30;
constexpr std::chrono::seconds too_long{60};

MakeStore clients_of(const std::shared_ptr<InProcessObjects>& objects, std::size_t lanes, std::size_t batch_bytes) {
  return [=](const RemoteQueueLimits& limits) -> std::unique_ptr<RemoteStore> {
    return std::make_unique<LaneStore>(LaneStore::lanes_over(objects, lanes), limits, batch_bytes);
  };
}

/// Does what a function says.
class FunctionLane final : public RemoteLane {
 public:
  using CarryOut = std::function<void(RemoteCall, std::span<const RemoteObject>, std::span<Completion>)>;
  explicit FunctionLane(CarryOut function) : function_(std::move(function)) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    function_(call, objects, answers);
  }

 private:
  CarryOut function_;
};

std::unique_ptr<RemoteLane> lane_of(FunctionLane::CarryOut function) {
  return std::make_unique<FunctionLane>(std::move(function));
}

/// A door at which threads wait until a number of them is there, or the test opens it.
class Door {
 public:
  explicit Door(std::size_t enough) : enough_(enough) {}
  /// Whether it was opened in time.
  bool pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    return changed_.wait_for(lock, too_long, [&] { return open_ || waiting_ >= enough_; });
  }
  void wait_for_visitors(std::size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, too_long, [&] { return waiting_ >= count; }));
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::size_t enough_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t waiting_ = 0;
  bool open_ = false;
};

ObjectSet set_in(std::int32_t objects, ObjectEncoding encoding = {}) {
  const StateSpec whole = StateSpec::uniform(1, {.window = 3, .dim = 16}, {.shape = {8, 2, 32}});
  const ModelLayout layout(whole, {.axis = 1, .bands = {{.extent = 16, .parts = 8}}},
                           {.axis = 0, .bands = {{.extent = 8, .parts = 8}}});
  return ObjectSet(layout, {}, {.model = ModelId(1), .grid = {.head_groups = objects}, .encoding = encoding});
}

ImageKey image_of(std::uint64_t number) {
  return {.prefix = {{number, 1}}, .tokens = 64};
}

Completion answer_of(RemoteTier& tier) {
  Completion answer;
  const auto end = std::chrono::steady_clock::now() + too_long;
  while (tier.poll({&answer, 1}) == 0) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::yield();
  }
  return answer;
}

std::vector<RemoteKey> some_keys(std::size_t count) {
  std::vector<RemoteKey> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back({.ticket = i, .key = "key"});
  return keys;
}

}  // namespace

TEST_CASE("a store with one lane conforms") {
  conforms(clients_of(std::make_shared<InProcessObjects>(room_bytes), 1, 0));
}

TEST_CASE("a store with several lanes conforms") {
  conforms(clients_of(std::make_shared<InProcessObjects>(room_bytes), 3, 5000));
}

TEST_CASE("a store with lanes behaves like a map") {
  for_each_seed(30, [](Random& random, std::uint64_t) {
    const auto objects = std::make_shared<InProcessObjects>(room_bytes);
    behaves_like_a_map(clients_of(objects, static_cast<std::size_t>(random.between(1, 3)), 5000), random, 30);
    objects->check_invariants();
  });
}

TEST_CASE("a status of a lane that is none, and more bytes than there is room for, are failures") {
  const std::array statuses = {transfer_status_count, 8, 127, 128, 255};
  LaneStore store(lane_of([&](RemoteCall, std::span<const RemoteObject> objects, std::span<Completion> answers) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::uint64_t ticket = objects[i].ticket;
      answers[i] = {.ticket = 99, .status = done, .bytes = ticket == 6 ? std::uint64_t{11} : 5};
      if (ticket < statuses.size()) answers[i].status = static_cast<TransferStatus>(statuses[ticket]);
      if (ticket == 5) answers[i].status = gone;
    }
  }));
  std::array<std::byte, 10> memory = {};
  const RemotePiece piece{memory.data(), memory.size()};
  std::vector<RemoteObject> objects;
  for (std::uint64_t ticket = 0; ticket < 8; ++ticket)
    objects.push_back({.ticket = ticket, .key = "key", .pieces = {&piece, 1}});
  REQUIRE(store.get_into(objects));
  const std::vector<Completion> answers = answers_of(store, objects.size());
  for (std::uint64_t ticket = 0; ticket < 5; ++ticket) CHECK(answers[ticket] == Completion{ticket, failed, 0});
  CHECK(answers[5] == Completion{5, gone, 0});
  CHECK(answers[6] == Completion{6, failed, 0});
  CHECK(answers[7] == Completion{7, done, 5});
  // Of a put it is the object's size, and of a question nothing.
  REQUIRE(store.put_from(std::span(objects).last(1)));
  CHECK(answers_of(store, 1).front() == Completion{7, done, 10});
  REQUIRE(store.exists(std::array{RemoteKey{.ticket = 7, .key = "key"}}));
  CHECK(answers_of(store, 1).front() == Completion{7, done, 0});
  CHECK(store.statistics().answers[static_cast<std::size_t>(failed)] == 6);
}

TEST_CASE("an exception of a lane leaves the answers that it gave") {
  LaneStore store(lane_of([](RemoteCall, std::span<const RemoteObject> objects, std::span<Completion> answers) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].ticket == 2) throw std::runtime_error("the test's");
      answers[i].status = gone;
    }
  }));
  REQUIRE(store.exists(some_keys(1)));
  CHECK(answers_of(store, 1).front().status == gone);
  REQUIRE(store.exists(some_keys(4)));
  const std::vector<Completion> answers = answers_of(store, 4);
  // The lane may have taken them one by one: then the fourth did not come behind the third.
  CHECK(answers[0].status == gone);
  CHECK(answers[1].status == gone);
  CHECK(answers[2].status == failed);
}

TEST_CASE("a lane takes requests of one kind together, as far as their bytes allow") {
  Door door(2);
  std::mutex mutex;
  std::vector<std::pair<RemoteCall, std::size_t>> calls;
  LaneStore store(lane_of([&](RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion>) {
                    {
                      const std::lock_guard lock(mutex);
                      calls.emplace_back(call, objects.size());
                    }
                    if (call == RemoteCall::remove) door.pass();
                  }),
                  100);
  std::array<std::byte, 300> memory = {};
  const auto put = [&](std::vector<std::size_t> sizes) {
    std::vector<RemotePiece> pieces;
    std::vector<RemoteObject> objects;
    for (const std::size_t bytes : sizes) pieces.push_back({memory.data(), bytes});
    for (std::size_t i = 0; i < sizes.size(); ++i) objects.push_back({.key = "key", .pieces = {&pieces[i], 1}});
    REQUIRE(store.put_from(objects));
  };
  REQUIRE(store.remove(some_keys(1)));
  door.wait_for_visitors(1);  // the others wait meanwhile
  put({50, 50, 1, 300, 40, 60});
  REQUIRE(store.exists(some_keys(70)));
  put({10});
  door.open();
  CHECK(answers_of(store, 78).size() == 78);
  const std::vector<std::pair<RemoteCall, std::size_t>> expected = {
      {RemoteCall::remove, 1}, {RemoteCall::put, 2},     {RemoteCall::put, 1},    {RemoteCall::put, 1},
      {RemoteCall::put, 2},    {RemoteCall::exists, 64}, {RemoteCall::exists, 6}, {RemoteCall::put, 1}};
  CHECK(calls == expected);
}

TEST_CASE("lanes share the objects of one set") {
  constexpr std::size_t lanes = 4;
  Door door(lanes);
  std::atomic<int> late = 0;
  const auto objects = std::make_shared<InProcessObjects>(room_bytes);
  LaneStore::Lanes all;
  for (std::size_t i = 0; i < lanes; ++i)
    all.push_back(lane_of([&, lane = std::make_shared<ObjectsLane>(objects)](
                              RemoteCall call, std::span<const RemoteObject> asked, std::span<Completion> answers) {
      if (!door.pass()) ++late;
      lane->carry_out(call, asked, answers);
    }));
  LaneStore store(std::move(all));
  const ObjectSet set = set_in(lanes);
  RemoteTier tier(store, {set});
  std::vector<std::byte> memory(set.bytes(), std::byte{5});
  REQUIRE(tier.write(1, image_of(1), memory));
  CHECK(answer_of(tier) == Completion{1, done, set.bytes()});
  CHECK(late == 0);
  CHECK(set.check(memory, image_of(1)) == done);
  std::vector<std::byte> read(set.bytes());
  REQUIRE(tier.read(2, image_of(1), read));
  CHECK(answer_of(tier) == Completion{2, done, set.bytes()});
  CHECK(read == memory);
}

TEST_CASE("the caller's thread computes no checksum") {
  const auto objects = std::make_shared<InProcessObjects>(room_bytes);
  const ObjectSet set = set_in(2);
  Door door(2);
  LaneStore store(lane_of([&, lane = std::make_shared<ObjectsLane>(objects)](
                              RemoteCall call, std::span<const RemoteObject> asked, std::span<Completion> answers) {
    if (call == RemoteCall::exists) door.pass();
    lane->carry_out(call, asked, answers);
  }));
  RemoteTier tier(store, {set});
  std::vector<std::byte> memory(set.bytes(), std::byte{5});
  REQUIRE(tier.find(1, image_of(1)));
  door.wait_for_visitors(1);
  REQUIRE(tier.write(2, image_of(1), memory));
  CHECK(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{5}; }));  // not sealed yet
  door.open();
  CHECK(answer_of(tier) == Completion{1, gone, 0});
  CHECK(answer_of(tier) == Completion{2, done, set.bytes()});
  CHECK(set.check(memory, image_of(1)) == done);
}

TEST_CASE("a tier that goes waits for the objects that lanes have, and gives up the others") {
  const auto objects = std::make_shared<InProcessObjects>(room_bytes);
  Door door(100);
  std::atomic<int> moved = 0;
  LaneStore store(lane_of([&, lane = std::make_shared<ObjectsLane>(objects)](
                              RemoteCall call, std::span<const RemoteObject> asked, std::span<Completion> answers) {
    door.pass();
    lane->carry_out(call, asked, answers);
    ++moved;
  }));
  const ObjectSet set = set_in(4);
  std::vector<std::byte> memory(set.bytes());
  auto tier = std::make_unique<RemoteTier>(store, std::vector{set});
  for (std::uint64_t ticket = 0; ticket < 3; ++ticket) REQUIRE(tier->write(ticket, image_of(ticket), memory));
  REQUIRE(tier->remove(image_of(9)));
  door.wait_for_visitors(1);
  std::atomic<bool> is_gone = false;
  std::thread thread([&] {
    tier.reset();
    is_gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(is_gone);  // the lane has an object of the first set
  door.open();
  thread.join();
  CHECK(moved == 1);
  CHECK(objects->keys().size() == 1);
  // The store has forgotten the others: another tier may use it, with all of its queue.
  const RemoteStoreStatistics before = store.statistics();
  CHECK(before.accepted_requests == 4);
  CHECK(before.answers[static_cast<std::size_t>(failed)] == 4);
  RemoteTier next(store, {set});
  REQUIRE(next.write(7, image_of(7), memory));
  CHECK(answer_of(next) == Completion{7, done, set.bytes()});
}

TEST_CASE("a tier whose answers nobody took leaves none to the next one") {
  InProcessStore in_poll(std::make_shared<InProcessObjects>(room_bytes), {.limits = {.queue_requests = 4}});
  LaneStore with_lane(lane_of([](RemoteCall, std::span<const RemoteObject>, std::span<Completion> answers) {
    for (Completion& answer : answers) answer.status = gone;
  }));
  const ObjectSet set = set_in(4);
  for (RemoteStore* store : std::array<RemoteStore*, 2>{&in_poll, &with_lane}) {
    {
      RemoteTier tier(*store, {set});
      REQUIRE(tier.find(1, image_of(1)));
      CHECK(tier.poll({}) == 0);
      const auto end = std::chrono::steady_clock::now() + too_long;
      while (store == &with_lane && tier.statistics().find_answers[static_cast<std::size_t>(gone)] == 0)
        REQUIRE(std::chrono::steady_clock::now() < end);
    }
    RemoteTier tier(*store, {set});
    REQUIRE(tier.find(2, image_of(1)));
    CHECK(answer_of(tier) == Completion{2, gone, 0});
  }
}

TEST_CASE("a read goes on in the next encoding though the queue is full") {
  const ObjectSet fp32 = set_in(4), int8 = set_in(4, {.recurrent = ElementType::int8_block32});
  const auto objects = std::make_shared<InProcessObjects>(room_bytes);
  LaneStore store(LaneStore::lanes_over(objects, 2), {.queue_requests = 12});
  {
    InProcessStore writer(objects);
    RemoteTier small(writer, {int8});
    std::vector<std::byte> memory(int8.bytes(), std::byte{3});
    REQUIRE(small.write(1, image_of(1), memory));
    REQUIRE(answer_of(small).status == done);
  }
  RemoteTier tier(store, {fp32, int8});
  std::vector<std::byte> one(tier.bytes(image_of(1))), other(one.size()), third(one.size());
  REQUIRE(tier.read(1, image_of(1), one));
  REQUIRE(tier.read(2, image_of(2), other));
  REQUIRE(tier.read(3, image_of(1), third));
  std::vector<Completion> answers = {answer_of(tier), answer_of(tier), answer_of(tier)};
  std::ranges::sort(answers, {}, &Completion::ticket);
  CHECK(answers[0] == Completion{1, done, int8.bytes(), 1});
  CHECK(answers[1] == Completion{2, gone, 0, 1});
  CHECK(answers[2] == Completion{3, done, int8.bytes(), 1});
}

TEST_CASE("lanes without memory answer everything") {
  const ObjectSet set = set_in(2);
  std::int64_t statuses = 0;
  for (std::uint64_t n = 1; n <= 40; ++n) {
    const auto objects = std::make_shared<InProcessObjects>(room_bytes);
    std::uint64_t calls = 0;
    LaneStore store(lane_of([&, lane = std::make_shared<ObjectsLane>(objects)](
                                RemoteCall call, std::span<const RemoteObject> asked, std::span<Completion> answers) {
      // From here to the next call: names and checksums of the next objects, too.
      ++calls;
      fail_heap_allocation((n * calls) % 31, calls % 3 == 0);
      lane->carry_out(call, asked, answers);
    }));
    RemoteTier tier(store, {set});
    std::vector<std::byte> memory(set.bytes());
    std::uint64_t next = 0;
    for (std::uint64_t image = 0; image < 6; ++image) {
      REQUIRE(tier.write(next++, image_of(image), memory));
      REQUIRE(tier.find(next++, image_of(image)));
      REQUIRE(tier.remove(image_of(image + 3)));
    }
    std::vector<std::byte> read(set.bytes());
    for (std::uint64_t image = 0; image < 6; ++image) REQUIRE(tier.read(next++, image_of(image), read));
    std::vector<int> answered(next);
    for (std::uint64_t i = 0; i < next; ++i) {
      const Completion answer = answer_of(tier);
      ++answered.at(answer.ticket);
      statuses += answer.status == done;
    }
    CHECK(std::ranges::all_of(answered, [](int times) { return times == 1; }));
  }
  CHECK(statuses > 0);
}

}  // namespace stateport
