// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/memory_mover.hpp>

#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/internal/virtual_memory.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/elastic_store.hpp>

#include "elastic_fixtures.hpp"
#include "fake_virtual_memory.hpp"
#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using test::device_granularity;
using test::elastic_kv;
using test::elastic_states;

namespace {

using Kind = MemoryMove::Kind;
using Settled = MemoryMover::Settled;
constexpr MemoryPart kv_part = MemoryPart::kv;
constexpr MemoryPart state_part = MemoryPart::states;

/// KV of 8 blocks in extents of 4 granules, states of 12 slots in extents of 5, and one granule that stays.
struct MovingArena {
  explicit MovingArena(std::size_t granules)
      : resource({.limit_bytes = (granules + 1) * device_granularity()}), mover(kv_store, state_store) {}

  [[nodiscard]] ElasticStore& store(MemoryPart part) { return part == kv_part ? kv_store : state_store; }
  void enqueue(const std::vector<MemoryMove>& moves) { mover.enqueue({.kv_copies = {}, .moves = moves}, stream); }
  [[nodiscard]] std::vector<Settled> poll() {
    std::vector<Settled> settled(100);
    settled.resize(mover.poll(settled));
    return settled;
  }
  [[nodiscard]] std::vector<Settled> finish() {
    mover.finish();
    return poll();
  }

  Stream stream = Stream::create();
  ElasticResource resource;
  ElasticStore kv_store{resource, elastic_kv(device_granularity()), {.slots = 8}};
  ElasticStore state_store{resource, elastic_states(device_granularity()), {.slots = 12}};
  MemoryMover mover;
};

MemoryMove map_of(std::uint64_t id, MemoryPart part, std::int32_t extent) {
  return {.id = id, .kind = Kind::map, .part = part, .extent = extent};
}
MemoryMove unmap_of(std::uint64_t id, MemoryPart part, std::int32_t extent) {
  return {.id = id, .kind = Kind::unmap, .part = part, .extent = extent};
}

using Answers = std::vector<Settled>;

}  // namespace

TEST_CASE("maps are carried out at once and reported by poll in their order") {
  MovingArena arena(20);
  arena.enqueue({map_of(1, kv_part, 0), map_of(2, state_part, 2), map_of(3, kv_part, 3)});
  CHECK(arena.kv_store.is_mapped(0));
  CHECK(arena.kv_store.is_mapped(3));
  CHECK(arena.state_store.is_mapped(2));
  CHECK(arena.mover.waiting() == 0);
  std::array<Settled, 2> two;
  CHECK(arena.mover.poll({}) == 0);
  CHECK(arena.mover.poll(two) == 2);
  CHECK(two == std::array{Settled{1, true}, Settled{2, true}});
  CHECK(arena.mover.poll(two) == 1);
  CHECK(two[0] == Settled{3, true});
  CHECK(arena.mover.poll(two) == 0);
}

TEST_CASE("an unmap gives its memory to a map that is enqueued when it has settled") {
  MovingArena arena(5);
  arena.enqueue({map_of(1, state_part, 0)});
  arena.enqueue({map_of(2, kv_part, 0)});
  CHECK(arena.poll() == Answers{{1, true}, {2, false}});
  CHECK_FALSE(arena.kv_store.is_mapped(0));
  arena.enqueue({unmap_of(3, state_part, 0)});
  CHECK(arena.finish() == Answers{{3, true}});
  CHECK_FALSE(arena.state_store.is_mapped(0));
  arena.enqueue({map_of(4, kv_part, 0)});
  CHECK(arena.poll() == Answers{{4, true}});
}

TEST_CASE("a map that was refused can be asked for again") {
  MovingArena arena(4);
  arena.enqueue({map_of(1, kv_part, 0), map_of(2, kv_part, 1)});
  CHECK(arena.poll() == Answers{{1, true}, {2, false}});
  arena.enqueue({unmap_of(3, kv_part, 0)});
  CHECK(arena.finish() == Answers{{3, true}});
  arena.enqueue({map_of(4, kv_part, 1)});
  CHECK(arena.poll() == Answers{{4, true}});
}

TEST_CASE("an unmap of an extent whose map was refused in the same plan is refused as well") {
  MovingArena arena(4);
  arena.enqueue({map_of(1, kv_part, 0), map_of(2, kv_part, 1), unmap_of(3, kv_part, 1), unmap_of(4, kv_part, 0)});
  CHECK(arena.finish() == Answers{{1, true}, {2, false}, {3, false}, {4, true}});
  arena.enqueue({map_of(5, kv_part, 1)});
  CHECK(arena.poll() == Answers{{5, true}});
}

TEST_CASE("KV is copied out of an extent before it is unmapped") {
  MovingArena arena(20);
  arena.enqueue({map_of(1, kv_part, 0), map_of(2, kv_part, 1)});
  CHECK(arena.poll().size() == 2);
  const std::int32_t count = arena.kv_store.extent().count;
  const StateStore& store = arena.kv_store.store();
  // Blocks of extent 1 have words of their own in each tensor.
  const auto words = [&](std::int32_t block, std::size_t tensor) {
    return std::span(reinterpret_cast<std::uint32_t*>(store.tensors()[tensor].slot_data(SlotId{block})), 16);
  };
  for (std::int32_t block = count; block < 2 * count; ++block)
    for (std::size_t t = 0; t < store.tensors().size(); ++t)
      std::ranges::fill(words(block, t), 100U * static_cast<std::uint32_t>(block) + static_cast<std::uint32_t>(t));
  std::vector<SlotCopy> copies;
  for (std::int32_t block = 0; block < count; ++block) copies.push_back(SlotCopy::whole(count + block, block));
  const MemoryMove move = unmap_of(3, kv_part, 1);
  arena.mover.enqueue({.kv_copies = copies, .moves = {&move, 1}}, arena.stream);
  CHECK(arena.finish() == Answers{{3, true}});
  CHECK_FALSE(arena.kv_store.is_mapped(1));
  for (std::int32_t block = 0; block < count; ++block)
    for (std::size_t t = 0; t < store.tensors().size(); ++t)
      CHECK(std::ranges::all_of(words(block, t), [&](std::uint32_t word) {
        return word == 100U * static_cast<std::uint32_t>(count + block) + static_cast<std::uint32_t>(t);
      }));
}

TEST_CASE("copies of blocks without memory are refused, and the moves with them") {
  MovingArena arena(20);
  arena.enqueue({map_of(1, kv_part, 0)});
  CHECK(arena.poll().size() == 1);
  const MemoryMove move = unmap_of(2, kv_part, 0);
  for (const SlotCopy& copy :
       {SlotCopy::whole(0, arena.kv_store.extent().count), SlotCopy::whole(99, 0), SlotCopy::whole(-1, 0)}) {
    CHECK_THROWS_WITH_AS(arena.mover.enqueue({.kv_copies = {&copy, 1}, .moves = {&move, 1}}, arena.stream),
                         doctest::Contains("kv_copies"), InvalidArgument);
    CHECK(arena.mover.waiting() == 0);
  }
  arena.enqueue({move});
  CHECK(arena.finish() == Answers{{2, true}});
}

TEST_CASE("a mover takes stores as they are") {
  MovingArena arena(20);
  REQUIRE(arena.kv_store.map(1));
  MemoryMover mover(arena.kv_store, arena.state_store);
  const MemoryMove move = unmap_of(1, kv_part, 1);
  mover.enqueue({.kv_copies = {}, .moves = {&move, 1}}, arena.stream);
  mover.finish();
  CHECK_FALSE(arena.kv_store.is_mapped(1));
}

TEST_CASE("a plan with a wrong move is refused whole, and its moves can be asked for afterwards") {
  MovingArena arena(30);
  arena.enqueue({map_of(1, kv_part, 0), map_of(2, state_part, 0)});
  CHECK(arena.poll().size() == 2);
  const std::vector<MemoryMove> good = {map_of(3, kv_part, 1), unmap_of(4, state_part, 0), unmap_of(5, kv_part, 1)};
  const std::vector<MemoryMove> wrong = {map_of(9, kv_part, 0),
                                         map_of(9, kv_part, 1),
                                         map_of(9, kv_part, 4),
                                         map_of(9, kv_part, -1),
                                         unmap_of(9, kv_part, 2),
                                         unmap_of(9, state_part, 0),
                                         map_of(9, state_part, 0),
                                         unmap_of(9, state_part, 3),
                                         {.id = 9, .kind = Kind::map, .part = MemoryPart{2}, .extent = 0},
                                         {.id = 9, .kind = Kind{2}, .part = kv_part, .extent = 2}};
  for (const MemoryMove& move : wrong) {
    CAPTURE(static_cast<int>(move.part));
    CAPTURE(move.extent);
    std::vector<MemoryMove> plan = good;
    plan.push_back(move);
    CHECK_THROWS_AS(arena.enqueue(plan), InvalidArgument);
    CHECK(arena.mover.waiting() == 0);
    CHECK(arena.poll().empty());
    CHECK_FALSE(arena.kv_store.is_mapped(1));
  }
  arena.enqueue(good);
  CHECK(arena.finish() == Answers{{3, true}, {4, true}, {5, true}});
}

namespace {

/// The stores of MovingArena, over the device's memory behind calls that may be refused.
struct RefusingArena {
  std::unique_ptr<detail::VirtualMemory> real = detail::native_virtual_memory(0);
  test::FakeDevice device{.granularity = device_granularity(), .unmaps_runs = real->unmaps_runs(), .real = real.get()};
  ElasticResource resource{{.limit_bytes = 100 * device_granularity()},
                           std::make_unique<test::FakeVirtualMemory>(device)};
  ElasticStore kv_store{resource, elastic_kv(device_granularity()), {.slots = 8}};
  ElasticStore state_store{resource, elastic_states(device_granularity()), {.slots = 12}};
  MemoryMover mover{kv_store, state_store};
  Stream stream = Stream::create();
};

}  // namespace

TEST_CASE("a move that the system refuses at any call ends undone, and nothing has changed") {
  RefusingArena arena;
  std::uint64_t id = 0;
  const auto carry_out = [&](Kind kind, int refuse_in) {
    arena.device.refused = 0;
    arena.device.refuse_in = refuse_in;
    const MemoryMove move{.id = ++id, .kind = kind, .part = state_part, .extent = 1};
    arena.mover.enqueue({.kv_copies = {}, .moves = {&move, 1}}, arena.stream);
    arena.mover.finish();
    arena.device.refuse_in = 0;
    Settled settled;
    REQUIRE(arena.mover.poll({&settled, 1}) == 1);
    REQUIRE(settled.id == id);
    REQUIRE(settled.done == (arena.device.refused == 0));
    REQUIRE(arena.state_store.is_mapped(1) == ((kind == Kind::map) == settled.done));
    return settled.done;
  };
  for (const Kind kind : {Kind::map, Kind::unmap, Kind::map}) {
    int refuse_in = 1;
    while (!carry_out(kind, refuse_in)) ++refuse_in;
    CHECK(refuse_in > 2);
    CHECK(arena.device.broken == std::vector<std::string>{});
  }
}

TEST_CASE("an extent that is half mapped because the system refused the way back is refused from then on") {
  RefusingArena arena;
  const std::array<MemoryMove, 2> plan = {map_of(1, kv_part, 2), map_of(2, kv_part, 1)};
  arena.device.refuse_in = 4 + 2;  // creates; the first tensor's access
  arena.device.refuse_count = 2;
  arena.mover.enqueue({.kv_copies = {}, .moves = plan}, arena.stream);
  CHECK(arena.device.refused == 2);
  arena.mover.enqueue({.kv_copies = {}, .moves = {plan.data(), 1}}, arena.stream);
  std::array<Settled, 3> settled;
  CHECK(arena.mover.poll(settled) == 3);
  CHECK(settled == std::array{Settled{1, false}, Settled{2, true}, Settled{1, false}});
  CHECK(arena.kv_store.is_mapped(1));
  CHECK_FALSE(arena.kv_store.is_mapped(2));
}

TEST_CASE("an unmap that the system refuses half-way, with the way back, ends as done: nothing may use the extent") {
  RefusingArena arena;
  const MemoryMove map = map_of(1, kv_part, 1);
  const MemoryMove unmap = unmap_of(2, kv_part, 1);
  arena.mover.enqueue({.kv_copies = {}, .moves = {&map, 1}}, arena.stream);
  arena.device.refuse_in = 2;  // the second call that unmaps
  arena.device.refuse_count = 2;
  arena.mover.enqueue({.kv_copies = {}, .moves = {&unmap, 1}}, arena.stream);
  arena.mover.finish();
  std::array<Settled, 2> settled;
  CHECK(arena.mover.poll(settled) == 2);
  CHECK(settled == std::array{Settled{1, true}, Settled{2, true}});
  CHECK(arena.device.refused == 2);
  CHECK_FALSE(arena.kv_store.is_mapped(1));
}

TEST_CASE("enqueue, poll and finish allocate nothing") {
  MovingArena arena(30);
  std::array<Settled, 4> settled;
  arena.enqueue({map_of(1, kv_part, 0)});
  arena.enqueue({unmap_of(2, kv_part, 0)});
  arena.mover.finish();
  REQUIRE(arena.mover.poll(settled) == 2);
  const std::array<MemoryMove, 3> plan = {map_of(3, kv_part, 0), map_of(4, state_part, 2), unmap_of(5, kv_part, 0)};
  const MemoryMove last = unmap_of(6, state_part, 2);
  const std::uint64_t before = test::heap_allocations();
  arena.mover.enqueue({.kv_copies = {}, .moves = plan}, arena.stream);
  arena.mover.enqueue({.kv_copies = {}, .moves = {&last, 1}}, arena.stream);
  arena.mover.finish();
  const std::size_t count = arena.mover.poll(settled);
  CHECK(test::heap_allocations() == before);
  CHECK(count == 4);
}

TEST_CASE("random plans end as a plain model says, under the limit, with all other contents as they were") {
  test::for_each_seed(60, [](test::Random& random, std::uint64_t) {
    const auto limit = static_cast<std::size_t>(random.between(3, 32));
    MovingArena arena(limit);
    const std::size_t granule = device_granularity();
    std::map<std::pair<MemoryPart, std::int32_t>, int> mapped;  // the byte that fills each mapped extent
    std::map<std::uint64_t, MemoryMove> under_way;
    std::uint64_t id = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<MemoryMove> plan;
      for (const MemoryPart part : {kv_part, state_part})
        for (std::int32_t extent = 0; extent < arena.store(part).extents(); ++extent) {
          const bool is_free = std::ranges::none_of(
              under_way, [&](const auto& entry) { return entry.second.part == part && entry.second.extent == extent; });
          if (!is_free || !random.chance(20)) continue;
          plan.push_back(mapped.contains({part, extent}) ? unmap_of(++id, part, extent) : map_of(++id, part, extent));
          under_way[id] = plan.back();
        }
      arena.enqueue(plan);
      if (random.chance(30)) arena.mover.finish();
      std::vector<Settled> settled(static_cast<std::size_t>(random.between(0, 5)));
      settled.resize(arena.mover.poll(settled));
      for (const Settled& one : settled) {
        const MemoryMove move = under_way.at(one.id);
        under_way.erase(one.id);
        if (move.kind == Kind::unmap) {
          REQUIRE(one.done);
          mapped.erase({move.part, move.extent});
        } else if (one.done) {
          const int value = random.between32(0, 255);
          mapped[{move.part, move.extent}] = value;
          test::paint(arena.store(move.part), move.extent, static_cast<unsigned char>(value));
        }
      }
      REQUIRE(arena.resource.mapped_bytes() <= (limit + 1) * granule);
      for (const auto& [place, value] : mapped) {
        const bool is_leaving = std::ranges::any_of(under_way, [&](const auto& entry) {
          return entry.second.part == place.first && entry.second.extent == place.second;
        });
        if (!is_leaving)
          REQUIRE(test::is_painted(arena.store(place.first), place.second, static_cast<unsigned char>(value)));
      }
    }
  });
}
