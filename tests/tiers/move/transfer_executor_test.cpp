// SPDX-License-Identifier: Apache-2.0
#include "move/transfer_executor.hpp"

#include "heap_counter.hpp"
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

using namespace stateport;
using test::copy_down;
using test::drop_from;
using test::find_in_remote;
using test::kv_image;
using test::load_from;
using test::SlowFiles;
using test::state_image;
using test::store_to;
using test::TransferRig;
using enum Medium;
using enum TransferStatus;
using Results = std::vector<TransferResult>;

TEST_CASE("a store is answered when its copy is done, and a load when it is enqueued") {
  TransferRig rig(2);
  const ImageKey a = state_image(1);
  rig.compute(3, a);
  rig.execute({store_to(host, 1, a, 3)});
  CHECK(rig.poll().empty());
  CHECK(rig.host.state(rig.host.find(a)) == HostTier::State::copying);
  CHECK(rig.executor->in_flight() == 1);
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}});
  CHECK(rig.host.state(rig.host.find(a)) == HostTier::State::ready);
  rig.execute({load_from(host, 2, a, 5), load_from(host, 3, state_image(2), 6)});
  CHECK(rig.poll() == Results{{3, gone}, {2, done}});
  rig.lane->advance();
  CHECK(rig.of(a).holds(5, a));
  CHECK(rig.executor->in_flight() == 0);
  // Polls when nothing is under way enqueue nothing, nor does a plan of misses.
  rig.execute({load_from(host, 4, state_image(2), 6)});
  CHECK(rig.poll() == Results{{4, gone}});
  CHECK(rig.poll().empty());
  CHECK(rig.lane->waiting() == 0);
}

TEST_CASE("a plan of one kind and direction is one launch, whatever its length") {
  TransferRig rig(20);
  std::vector<Transfer> plan;
  for (std::int32_t slot = 0; slot < TransferRig::slots; ++slot) {
    const ImageKey key = kv_image(static_cast<std::uint64_t>(slot));
    rig.of(key).fill(slot, key);
    plan.push_back(store_to(host, static_cast<TransferId>(slot) + 1, key, slot));
  }
  rig.execute(plan);
  CHECK(rig.lane->launches == 1);
  // The blocks of a plan fill one frame after the other.
  CHECK(rig.host.usage().empty_frames == 17);
  rig.lane->advance();
  CHECK(rig.poll().size() == 8);
  for (Transfer& transfer : plan)
    transfer = load_from(host, transfer.id + 8, transfer.image, (transfer.place + 3) % TransferRig::slots);
  rig.execute(plan);
  CHECK(rig.lane->launches == 2);
  rig.lane->advance();
  for (const Transfer& transfer : plan) CHECK(rig.of(transfer.image).holds(transfer.place, transfer.image));
}

TEST_CASE("a load may follow the store of its image, and a store the load of its slot, in one plan") {
  TransferRig rig(3);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.compute(1, b);
  // Slot 0 is stored, then written by a load; what was loaded to slot 4 is stored again under the same name.
  rig.execute({store_to(host, 1, a, 0), store_to(host, 2, b, 1), load_from(host, 3, b, 0), load_from(host, 4, a, 4),
               drop_from(host, a), store_to(host, 5, a, 4)});
  rig.lane->advance();
  rig.execute({load_from(host, 6, a, 7)});
  rig.lane->advance();
  CHECK(rig.of(a).holds(0, b));
  CHECK(rig.of(a).holds(7, a));
  CHECK(rig.poll() == Results{{3, done}, {4, done}, {6, done}, {1, gone}, {2, done}, {5, done}});
}

TEST_CASE("what a drop gives up serves a later store of the plan, though it is still read") {
  TransferRig rig(1);
  const ImageKey a = state_image(1), b = state_image(2), c = state_image(3);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0)});
  rig.compute(1, b);
  rig.compute(2, c);
  rig.execute({load_from(host, 2, a, 5), store_to(host, 3, b, 1), drop_from(host, a), store_to(host, 4, b, 1),
               drop_from(host, b), store_to(host, 5, c, 2)});
  rig.execute({load_from(host, 6, c, 6)});
  rig.lane->advance();
  CHECK(rig.of(a).holds(5, a));
  CHECK(rig.of(a).holds(6, c));
  CHECK(rig.poll() == Results{{3, no_room}, {2, done}, {6, done}, {1, gone}, {4, gone}, {5, done}});
}

TEST_CASE("a store reads what a load before it in the plan writes") {
  TransferRig rig(2);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0)});
  rig.execute({load_from(host, 2, a, 4), store_to(host, 3, b, 4)});
  rig.execute({load_from(host, 4, b, 6)});
  rig.lane->advance();
  CHECK(rig.of(a).holds(6, a));
}

TEST_CASE("two loads into one slot leave the later one") {
  TransferRig rig(2);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.compute(1, b);
  rig.execute({store_to(host, 1, a, 0), store_to(host, 2, b, 1)});
  rig.execute({load_from(host, 3, b, 5), load_from(host, 4, a, 5)});
  rig.lane->advance();
  CHECK(rig.of(a).holds(5, a));
}

TEST_CASE("a store of an image that is held copies nothing, and is done when that image is there") {
  TransferRig rig(1);
  const ImageKey a = state_image(1);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0), store_to(host, 2, a, 1)});
  CHECK(rig.lane->launches == 1);
  CHECK(rig.poll().empty());
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}, {2, done}});
  rig.execute({store_to(host, 3, a, 2)});
  CHECK(rig.lane->launches == 1);
  CHECK(rig.poll() == Results{{3, done}});
}

TEST_CASE("copies on another stream come behind what was enqueued before, loads of host memory included") {
  TransferRig rig(2);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0)});
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}});
  rig.execute({load_from(host, 2, a, 5)});
  rig.stream = Stream::create();
  // The store of b takes the place of a, which is still read.
  rig.execute({drop_from(host, a), store_to(host, 3, b, 1)});
  rig.stream = Stream::create();
  rig.execute({load_from(host, 4, b, 6)});
  CHECK(rig.lane->lost_copies == 0);
  rig.lane->advance();
  CHECK(rig.of(a).holds(5, a));
}

TEST_CASE("a lane whose marks nobody asks for needs no more events") {
  const Stream stream = Stream::default_stream();
  tiers::DeviceLane lane({});
  for (int i = 0; i < 20; ++i) lane.mark(stream);
  stream.synchronize();
  const std::uint64_t before = test::heap_allocations();
  for (int i = 0; i < 1000; ++i) {
    lane.mark(stream);
    stream.synchronize();
  }
  CHECK(test::heap_allocations() == before);
  CHECK(lane.reached() == 1020);
}

TEST_CASE("results come in pieces of any size, each once") {
  TransferRig rig(1);
  std::vector<Transfer> plan;
  for (TransferId id = 1; id <= 10; ++id) plan.push_back(load_from(host, id, state_image(id), 0));
  rig.execute(plan);
  CHECK(rig.executor->in_flight() == 10);
  Results all;
  for (const std::size_t room : std::vector<std::size_t>{0, 3, 1, 5, 4}) {
    const Results some = rig.poll(room);
    CHECK(some.size() <= room);
    all.insert(all.end(), some.begin(), some.end());
  }
  REQUIRE(all.size() == 10);
  for (TransferId id = 1; id <= 10; ++id) CHECK(all[id - 1] == TransferResult{id, gone});
  CHECK(rig.executor->in_flight() == 0);
}

TEST_CASE("a header of another image, of another layout or of none is never loaded") {
  TransferRig rig(2);
  const ImageKey a = state_image(1);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0)});
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}});
  const std::span<std::byte> image = rig.host.bytes(rig.host.find(a));
  const ImageLayout& layout = rig.layout(a);
  const int launches = rig.lane->launches;
  std::vector<Checksum> sums(5);
  layout.write_header(image.first(layout.header_bytes()), state_image(2), sums);
  rig.execute({load_from(host, 2, a, 5)});
  CHECK(rig.poll() == Results{{2, wrong_position}});
  ImageLayout(layout.spec(), {.model = ModelId(10), .group = 0})
      .write_header(image.first(layout.header_bytes()), a, sums);
  rig.execute({load_from(host, 3, a, 5)});
  CHECK(rig.poll() == Results{{3, foreign_layout}});
  image[60] ^= std::byte{1};
  rig.execute({load_from(host, 4, a, 5)});
  CHECK(rig.poll() == Results{{4, damaged}});
  CHECK(rig.lane->launches == launches);
}

TEST_CASE("transfers that no tier here can carry out are refused by name before anything has begun") {
  TransferRig rig(1);
  const auto refuses = [&](const Transfer& transfer, const char* text) {
    const Transfer good = store_to(host, 1, state_image(1), 0);
    CHECK_THROWS_WITH_AS(rig.execute({good, transfer}), doctest::Contains(text), InvalidArgument);
  };
  refuses(store_to(host, 2, state_image(2), TransferRig::slots), "place = 8");
  refuses(load_from(host, 2, state_image(2), -1), "place = -1");
  refuses(store_to(host, 2, state_image(2, 2), 0), "image.group = 2");
  refuses(store_to(remote, 2, state_image(2), 0), "to = 3");
  refuses(load_from(device, 2, state_image(2), 0), "from = 0");
  refuses(load_from(file, 2, state_image(2), 0), "from = 2");
  refuses(copy_down(2, state_image(2)), "to = 2");
  refuses(copy_down(2, state_image(2), host, remote), "to = 3");
  refuses(copy_down(2, state_image(2), file, remote), "from = 2");
  refuses(drop_from(remote, state_image(2)), "from = 3");
  refuses(load_from(remote, 2, state_image(2), 0), "from = 3 (is no tier that is here)");
  refuses({.id = 2, .kind = Transfer::Kind::find, .image = state_image(2), .from = remote, .to = remote},
          "from = 3 (is no tier that can be asked)");
  ImageKey negative = state_image(2);
  negative.tokens = -1;
  refuses(store_to(host, 2, negative, 0), "image.tokens = -1");
  Transfer unknown = store_to(host, 2, state_image(2), 0);
  unknown.kind = static_cast<Transfer::Kind>(9);
  refuses(unknown, "kind = 9");
  CHECK(rig.executor->in_flight() == 0);
  CHECK(rig.host.usage().images == 0);
}

TEST_CASE("a launch that the runtime refuses fails its transfers, and nobody finds their images") {
  TransferRig rig(2, 1);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.lane->refuse_stores = true;
  rig.execute({store_to(host, 1, a, 0), load_from(host, 2, a, 1), copy_down(3, a), store_to(file, 4, b, 0)});
  CHECK_FALSE(rig.host.find(a).valid());
  rig.lane->advance();
  CHECK(rig.poll() == Results{{2, failed}, {1, failed}, {3, failed}, {4, failed}});
  CHECK(rig.files.waiting() == 0);
  CHECK(rig.host.usage().images == 0);
  rig.lane->refuse_stores = false;
  rig.compute(0, a);
  rig.execute({store_to(host, 5, a, 0)});
  rig.lane->refuse_loads = true;
  rig.execute({load_from(host, 6, a, 1)});
  rig.lane->advance();
  CHECK(rig.poll() == Results{{6, failed}, {5, done}});
  CHECK(rig.executor->in_flight() == 0);
}

TEST_CASE("an event that the runtime refuses is thrown, and poll makes it up") {
  TransferRig rig(1);
  const ImageKey a = state_image(1);
  rig.compute(0, a);
  rig.lane->refuse_marks = true;
  CHECK_THROWS_AS(rig.execute({store_to(host, 1, a, 0)}), BackendError);
  CHECK_THROWS_AS(rig.poll(), BackendError);
  rig.lane->refuse_marks = false;
  rig.lane->advance();
  CHECK(rig.poll().empty());
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}});
}

TEST_CASE("finds, loads and stores wait while others fill the queue of a store that machines share") {
  TransferRig rig(1, 0, {}, 4);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.remote.queue_max = 1;
  rig.compute(0, a);
  rig.execute({find_in_remote(1, a), find_in_remote(2, b), store_to(remote, 3, a, 0)});
  rig.lane->advance();
  Results all;
  // They have the one place in turn: none is refused.
  for (int request = 0; request < 5; ++request) {
    if (request == 1) rig.execute({load_from(remote, 4, b, 5), find_in_remote(5, a)});
    CHECK(rig.remote.waiting() == 1);
    rig.remote.finish(0);
    const Results some = rig.poll();
    all.insert(all.end(), some.begin(), some.end());
  }
  CHECK(rig.remote.waiting() == 0);
  std::ranges::sort(all, {}, &TransferResult::id);
  REQUIRE(all.size() == 5);
  CHECK(all[0] == TransferResult{1, gone});
  CHECK(all[1] == TransferResult{2, gone});
  CHECK(all[2] == TransferResult{3, done});
  CHECK(all[3] == TransferResult{4, gone});
  CHECK((all[4].status == done || all[4].status == gone));
  CHECK(rig.executor->in_flight() == 0);
}

TEST_CASE("a transfer that is done has its time counted once, for its tier and its direction") {
  using Direction = TransferTimes::Direction;
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  TransferRig rig(3, 2, {}, 2);
  const auto total = [&](Medium tier, Direction direction) {
    return rig.executor->times().of(tier, direction).total();
  };
  const auto settle = [&] {
    while (rig.executor->in_flight() > 0) {
      rig.lane->advance();
      for (SlowFiles* const lower : {&rig.files, &rig.remote})
        if (lower->waiting() > 0) lower->finish(0);
      rig.poll();
    }
  };
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.compute(1, b);
  rig.execute({store_to(host, 1, a, 0), store_to(file, 2, b, 1), load_from(host, 3, state_image(9), 2)});
  constexpr std::chrono::milliseconds pause(2);
  std::this_thread::sleep_for(pause);
  CHECK(total(host, Direction::store) == 0);
  rig.lane->advance();
  rig.poll();
  CHECK(total(host, Direction::store) == 1);
  CHECK(total(file, Direction::store) == 0);
  const double seconds = rig.executor->times().of(host, Direction::store).sum();
  CHECK(seconds >= std::chrono::duration<double>(pause).count());
  CHECK(seconds <= std::chrono::duration<double>(Clock::now() - begun).count());
  settle();
  CHECK(total(file, Direction::store) == 1);
  rig.execute({load_from(file, 4, b, 3), load_from(file, 5, state_image(9), 4), find_in_remote(6, b)});
  settle();
  CHECK(total(file, Direction::load) == 1);  // the other one was not there
  CHECK(total(remote, Direction::find) == 0);
  rig.execute({copy_down(7, a, host, remote)});
  settle();
  rig.execute({find_in_remote(8, a), load_from(remote, 9, a, 5)});
  settle();
  CHECK(total(remote, Direction::store) == 1);
  CHECK(total(remote, Direction::find) == 1);
  CHECK(total(remote, Direction::load) == 1);
  CHECK(total(host, Direction::load) == 0);
}
