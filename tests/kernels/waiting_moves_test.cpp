// SPDX-License-Identifier: Apache-2.0
// Moves of memory while the device works, and while a stream captures. An OpenMP build does neither: both are
// pretended.
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/elastic_store.hpp>
#include <stateport/kernels/memory_mover.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "elastic_fixtures.hpp"
#include "pretending.hpp"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace stateport;
using test::device_granularity;
using test::Pretending;

namespace {

using Kind = MemoryMove::Kind;
using Settled = MemoryMover::Settled;

struct WaitingArena {
  ElasticResource resource{{.limit_bytes = 100 * device_granularity()}};
  ElasticStore kv{resource, test::elastic_kv(device_granularity()), {.slots = 8}};
  ElasticStore states{resource, test::elastic_states(device_granularity()), {.slots = 12}};
  MemoryMover mover{kv, states};
  Stream stream = Stream::default_stream();

  void enqueue(std::uint64_t id, Kind kind, std::int32_t extent) {
    const MemoryMove move{.id = id, .kind = kind, .part = MemoryPart::kv, .extent = extent};
    mover.enqueue({.kv_copies = {}, .moves = {&move, 1}}, stream);
  }
  [[nodiscard]] std::vector<Settled> poll() {
    std::vector<Settled> settled(10);
    settled.resize(mover.poll(settled));
    return settled;
  }
};

using Answers = std::vector<Settled>;

}  // namespace

TEST_CASE("an extent stays mapped until the work before its unmap is done, and maps do not wait") {
  WaitingArena arena;
  for (std::int32_t extent = 0; extent < 3; ++extent) arena.enqueue(1, Kind::map, extent);
  CHECK(arena.poll().size() == 3);
  test::paint(arena.kv, 0, 8);
  {
    const Pretending working({.work_runs = true});
    arena.enqueue(2, Kind::unmap, 0);
    arena.enqueue(3, Kind::map, 3);
    arena.enqueue(4, Kind::unmap, 1);
    CHECK(arena.mover.waiting() == 2);
    CHECK(arena.poll() == Answers{{3, true}});
    CHECK(arena.kv.is_mapped(0));
    CHECK(test::is_painted(arena.kv, 0, 8));
    CHECK_THROWS_AS(arena.enqueue(5, Kind::map, 0), InvalidArgument);  // not settled
    CHECK_THROWS_AS(arena.enqueue(5, Kind::unmap, 0), InvalidArgument);
    CHECK(arena.poll().empty());
  }
  CHECK(arena.poll() == Answers{{2, true}, {4, true}});
  CHECK_FALSE(arena.kv.is_mapped(0));
  CHECK_FALSE(arena.kv.is_mapped(1));
  CHECK(arena.kv.is_mapped(2));
  CHECK(arena.mover.waiting() == 0);
  arena.enqueue(5, Kind::map, 0);
  CHECK(arena.poll() == Answers{{5, true}});
}

TEST_CASE("finish waits for the work before each unmap") {
  WaitingArena arena;
  arena.enqueue(1, Kind::map, 0);
  const Pretending working({.work_runs = true});
  arena.enqueue(2, Kind::unmap, 0);
  arena.mover.finish();
  CHECK_FALSE(detail::pretence().work_runs);
  CHECK_FALSE(arena.kv.is_mapped(0));
  CHECK(arena.poll() == Answers{{1, true}, {2, true}});
}

TEST_CASE("many unmaps may wait at once, each for its own work, and a mover that goes leaves them") {
  WaitingArena arena;
  for (int round = 0; round < 3; ++round) {
    for (std::int32_t extent = 0; extent < 4; ++extent) arena.enqueue(1, Kind::map, extent);
    const Pretending working({.work_runs = true});
    for (std::int32_t extent = 0; extent < 4; ++extent) arena.enqueue(2, Kind::unmap, extent);
    CHECK(arena.mover.waiting() == 4);
    CHECK(arena.poll().size() == 4);
    arena.mover.finish();
    CHECK(arena.poll().size() == 4);
    CHECK(arena.kv.mapped_extents() == 0);
  }
  arena.enqueue(3, Kind::map, 1);
  {
    MemoryMover other(arena.kv, arena.states);
    const Pretending working({.work_runs = true});
    const MemoryMove move{.id = 1, .kind = Kind::unmap, .part = MemoryPart::kv, .extent = 1};
    other.enqueue({.kv_copies = {}, .moves = {&move, 1}}, arena.stream);
  }
  CHECK(arena.kv.is_mapped(1));
}

TEST_CASE("moves on a stream that captures a graph are refused, and can be asked for afterwards") {
  WaitingArena arena;
  arena.enqueue(1, Kind::map, 0);
  CHECK(arena.poll().size() == 1);
  {
    const Pretending capturing({.captures = true});
    CHECK_THROWS_AS(arena.enqueue(2, Kind::unmap, 0), InvalidState);
    CHECK_THROWS_AS(arena.enqueue(2, Kind::map, 1), InvalidState);
  }
  CHECK(arena.mover.waiting() == 0);
  arena.enqueue(2, Kind::unmap, 0);
  CHECK(arena.poll() == Answers{{2, true}});
}

TEST_CASE("kernels take an elastic store without memory, which a vendor's runtime does not know, for device memory") {
  WaitingArena arena;
  const Pretending unknown({.memory = {.kind = detail::MemoryPlace::Kind::pageable_host}});
  CHECK_NOTHROW(SlotCopier{arena.kv.store()});
}
