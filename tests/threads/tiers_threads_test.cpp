// SPDX-License-Identifier: Apache-2.0
// Calls that the headers of tiers allow to several threads at once.
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/tiers/file_tier.hpp>
#include <stateport/tiers/handover.hpp>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/remote_tier.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "file/file_images.hpp"
#include "move/transfer_rig.hpp"
#include "on_threads.hpp"
#include "remote/lane_store.hpp"
#include "temporary_folder.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace stateport;
using test::must;
using test::on_threads;
using test::state_image;

namespace {

constexpr std::size_t threads = 4;
constexpr std::uint64_t rounds = 30;

/// Answers by their numbers, taken by any thread. A number belongs to one thread until its answer is here.
class Board {
 public:
  explicit Board(std::size_t numbers) : statuses_(numbers) {}
  void put(std::uint64_t number, TransferStatus status) {
    must(statuses_.at(number).exchange(static_cast<int>(status) + 1) == 0, "an answer comes twice");
  }
  [[nodiscard]] bool has(std::uint64_t number) const { return statuses_.at(number) != 0; }
  [[nodiscard]] TransferStatus take(std::uint64_t number) {
    return static_cast<TransferStatus>(statuses_.at(number).exchange(0) - 1);
  }

 private:
  std::vector<std::atomic<int>> statuses_;
};

StateSpec spec() {
  return StateSpec::uniform(1, {.window = 3, .dim = 32}, {.shape = {2, 4, 8}});
}
ModelLayout layout() {
  return ModelLayout(spec(), {.axis = 1, .bands = {{.extent = 32, .parts = 2}}},
                     {.axis = 0, .bands = {{.extent = 2, .parts = 2}}});
}

}  // namespace

TEST_CASE("any thread calls a store and takes its answers, while others look at its objects") {
  const auto objects = std::make_shared<InProcessObjects>(20000);
  std::array<std::unique_ptr<InProcessStore>, 2> clients;
  for (auto& client : clients) client = std::make_unique<InProcessStore>(objects);
  std::array<Board, 2> boards = {Board(threads), Board(threads)};
  std::atomic<std::size_t> working = threads;
  on_threads(threads + 2, [&](std::size_t number) {
    while (number >= threads && working > 0) {
      static_cast<void>(number == threads ? objects->held_bytes() : objects->keys().size());
      static_cast<void>(clients[number % 2]->statistics());
      std::this_thread::yield();
    }
    if (number >= threads) return;
    const struct Done {
      std::atomic<std::size_t>& working;
      ~Done() { --working; }
    } done{working};
    std::vector<std::byte> bytes(1000, static_cast<std::byte>(number % 2));
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::size_t at = (number + round) % clients.size();
      InProcessStore& store = *clients[at];
      const std::string name = "key" + std::to_string(number % 2) + '-' + std::to_string(round % 7);
      const auto wait = [&] {
        while (!boards[at].has(number)) {
          std::array<Completion, 2> some;
          const std::size_t count = store.poll(some);
          for (std::size_t i = 0; i < count; ++i) boards[at].put(some[i].ticket, some[i].status);
        }
        return boards[at].take(number);
      };
      const RemotePiece piece{bytes.data(), bytes.size()};
      const RemoteObject object{number, name, {&piece, 1}};
      const RemoteKey key{number, name};
      must(store.put_from({&object, 1}), "a put is refused");
      must(wait() == TransferStatus::done, "a put fails");
      must(store.get_into({&object, 1}), "a get is refused");
      const TransferStatus got = wait();
      must(got == TransferStatus::done || got == TransferStatus::gone, "a get fails");
      must(got == TransferStatus::gone || bytes.front() == static_cast<std::byte>(number % 2),
           "a get brings others' bytes");
      must(store.exists({&key, 1}), "a question is refused");
      static_cast<void>(wait());
      if (round % 5 == 0) {
        must(store.remove({&key, 1}), "a removal is refused");
        static_cast<void>(wait());
      }
      objects->check_invariants();
    }
  });
}

TEST_CASE("any thread calls a tier of files and takes its answers") {
  const test::TemporaryFolder folder;
  const std::vector<ImageLayout> layouts = test::small_layouts();
  FileTier tier({.folder = folder.images(), .capacity_bytes = 64 * test::state_bytes}, layouts);
  Board board(threads + 1);
  on_threads(threads, [&](std::size_t number) {
    const test::AlignedBytes written(test::state_bytes), read(test::state_bytes);
    const TransferId id = number + 1;
    const auto wait = [&] {
      while (!board.has(id)) {
        std::array<Completion, 2> some;
        const std::size_t count = tier.poll(some);
        for (std::size_t i = 0; i < count; ++i) board.put(some[i].ticket, some[i].status);
        std::this_thread::yield();
      }
      return board.take(id);
    };
    for (std::uint64_t round = 0; round < rounds / 2; ++round) {
      const ImageKey key = test::state_key(10 * (number / 2) + round % 4 + 1);  // of two threads each
      const FileImage image{key, written.data()};
      if (tier.write(id, {&image, 1})) must(wait() == TransferStatus::done, "a write fails");
      if (tier.read(id, key, read.bytes())) {
        const TransferStatus status = wait();
        must(status == TransferStatus::done || status == TransferStatus::gone, "a read fails");
      }
      if (round % 3 == 0) tier.remove(key);
      bool held = false;
      static_cast<void>(tier.lookup({&key, 1}, {&held, 1}));
      static_cast<void>(tier.keys());
      static_cast<void>(tier.statistics());
      tier.check_invariants();
    }
  });
  tier.wait_idle();
  tier.check_invariants();
}

namespace {

void call_from_threads(RemoteStore& store) {
  const ObjectSet set(layout(), {}, {.model = ModelId(1), .grid = {.head_groups = 2}});
  RemoteTier tier(store, {set});
  Board board(threads + 1);
  on_threads(threads, [&](std::size_t number) {
    const TransferId id = number + 1;
    std::vector<std::byte> memory(set.bytes());
    const auto wait = [&] {
      while (!board.has(id)) {
        std::array<Completion, 2> some;
        const std::size_t count = tier.poll(some);
        for (std::size_t i = 0; i < count; ++i) board.put(some[i].ticket, some[i].status);
        std::this_thread::yield();
      }
      return board.take(id);
    };
    for (std::uint64_t round = 0; round < rounds / 2; ++round) {
      const ImageKey key = state_image(10 * (number / 2) + round % 4 + 1);
      must(tier.write(id, key, memory), "a write is refused");
      must(wait() == TransferStatus::done, "a write fails");
      must(tier.find(id, key), "a question is refused");
      static_cast<void>(wait());
      must(tier.read(id, key, memory), "a read is refused");
      const TransferStatus status = wait();
      must(status == TransferStatus::done || status == TransferStatus::gone, "a read fails");
      if (round % 3 == 0) must(tier.remove(key), "a removal is refused");
      static_cast<void>(tier.statistics());
      static_cast<void>(tier.sets(CacheContent::state, 0));
    }
  });
  must(tier.find(1, state_image(1)), "a question is refused");  // and given up, with the removals
}

}  // namespace

TEST_CASE("any thread calls a remote tier and takes its answers") {
  const auto objects = std::make_shared<InProcessObjects>(std::uint64_t{1} << 20);
  InProcessStore store(objects);
  call_from_threads(store);
  test::LaneStore with_lanes(test::LaneStore::lanes_over(objects, 2));
  call_from_threads(with_lanes);
}

TEST_CASE("engines on threads of their own share a store, each with its files") {
  const auto objects = std::make_shared<InProcessObjects>(std::uint64_t{1} << 20);
  on_threads(2, [&](std::size_t) {
    const test::TemporaryFolder folder;
    const Stream stream = Stream::create();
    PinnedResource memory;
    InProcessStore client(objects);
    test::DeviceStates states(spec(), 4);
    const std::size_t image = ImageLayout(spec(), {}).image_bytes();
    StateTiers tiers(memory,
                     {.states = {&states.store()},
                      .model = ModelId(1),
                      .host_budget_bytes = 4 * image,
                      .files = FileTierOptions{.folder = folder.images(), .capacity_bytes = 16 * image},
                      .staging_bytes = 4 * image,
                      .remote = RemoteOptions{
                          .store = &client, .states = {{.layout = layout()}}, .staging_bytes = std::size_t{1} << 20}});
    const auto wait = [&] {
      std::array<TransferResult, 4> some;
      TransferStatus last = TransferStatus::done;
      while (tiers.in_flight() > 0) {
        const std::size_t count = tiers.poll(stream, some);
        for (std::size_t i = 0; i < count; ++i) last = some[i].status;
        std::this_thread::yield();
      }
      return last;
    };
    for (std::uint64_t round = 1; round <= 12; ++round) {
      const ImageKey key = state_image(round);
      states.fill(0, key);
      constexpr std::array places = {Medium::host, Medium::file, Medium::remote};
      for (const Medium medium : places) {
        if (medium == Medium::host && round > 3) continue;
        const SlotImage slot{key, SlotId{0}};
        static_cast<void>(tiers.put(stream, {&slot, 1}, medium));
        must(wait() == TransferStatus::done, "a store fails");
      }
      static_cast<void>(tiers.find(stream, {&key, 1}));
      must(wait() == TransferStatus::done, "a stored image is not found");
      static_cast<void>(tiers.get(stream, key, SlotId{2}));
      must(wait() == TransferStatus::done, "a load fails");
      stream.synchronize();
      must(states.holds(2, key), "a load brings another state");
      tiers.remove(stream, {&key, 1});
      static_cast<void>(tiers.get(stream, key, SlotId{3}));  // from the store that both share
      must(wait() == TransferStatus::done, "a load from the store fails");
      must(states.holds(3, key), "a load from the store brings another state");
      tiers.check_invariants();
    }
  });
}

TEST_CASE("places of a hand-over are checked while others are packed") {
  PinnedResource memory;
  test::DeviceStates states(spec(), 4);
  const ImageKey key = state_image(3);
  states.fill(0, key);
  HandoverEnd end(memory, {.layout = layout()}, states.store(), {.model = ModelId(1)}, 3);
  const Stream stream = Stream::create();
  const SlotCopy copy = SlotCopy::whole(0, 0);
  end.pack(stream, {&copy, 1});
  stream.synchronize();
  end.seal(0, key);
  on_threads(3, [&](std::size_t number) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      if (number > 0) {
        must(end.check(0, key) == TransferStatus::done, "a check fails beside others");
        continue;
      }
      const SlotCopy other = SlotCopy::whole(0, 1 + static_cast<std::int32_t>(round % 2));
      end.pack(stream, {&other, 1});
      stream.synchronize();
      end.seal(other.dst_slot, key);
    }
  });
  CHECK(end.check(1, key) == TransferStatus::done);
}
