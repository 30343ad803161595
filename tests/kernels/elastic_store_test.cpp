// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/elastic_store.hpp>

#include <stateport/backends/device.hpp>
#include <stateport/backends/internal/virtual_memory.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_graph.hpp"
#include "elastic_fixtures.hpp"
#include "fake_virtual_memory.hpp"
#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using test::device_granularity;
using test::elastic_kv;
using test::elastic_states;
using test::is_painted;
using test::paint;

TEST_CASE("a new store has memory for the tensors that stay alone") {
  const std::size_t granule = device_granularity();
  ElasticResource resource({.limit_bytes = 40 * granule});
  {
    const ElasticStore store(resource, elastic_states(granule), {.slots = 10});
    CHECK(store.extent() == ExtentShape{.count = 4, .bytes = static_cast<std::int64_t>(5 * granule)});
    CHECK(store.extents() == 3);
    CHECK(store.mapped_extents() == 0);
    CHECK(store.fixed_bytes() == static_cast<std::int64_t>(granule));
    CHECK(resource.mapped_bytes() == granule);
    CHECK(store.store().slots() == 10);
    CHECK(store.store().spec() == elastic_states(granule));
    for (const StateTensorView& tensor : store.store().tensors())
      if (tensor.spec.kind == StateKind::conv)
        for (std::int32_t slot = 0; slot < 10; ++slot)
          fill_bytes(Stream::default_stream(), tensor.slot_data(SlotId{slot}), std::byte{1},
                     tensor.spec.natural_bytes());
      else
        CHECK(reinterpret_cast<std::uintptr_t>(tensor.base) % granule == 0);
  }
  CHECK(resource.mapped_bytes() == 0);
}

TEST_CASE("a store whose tensors that stay find no memory is not made, and leaves nothing") {
  const std::size_t granule = device_granularity();
  ElasticResource resource({.limit_bytes = granule});
  const ElasticStore first(resource, elastic_states(granule), {.slots = 4});
  CHECK_THROWS_AS(ElasticStore(resource, elastic_states(granule), {.slots = 4}), OutOfMemory);
  CHECK(resource.mapped_bytes() == granule);
  const ElasticStore kv(resource, elastic_kv(granule), {.slots = 4});  // nothing stays
  CHECK(kv.fixed_bytes() == 0);
}

TEST_CASE("extents are mapped and unmapped by their numbers, under the limit that all stores share") {
  const std::size_t granule = device_granularity();
  ElasticResource resource({.limit_bytes = 1 * granule + 5 * granule + 4 * granule});
  ElasticStore states(resource, elastic_states(granule), {.slots = 9});
  ElasticStore kv(resource, elastic_kv(granule), {.slots = 6});
  CHECK(states.map(2));
  CHECK(states.is_mapped(2));
  CHECK_FALSE(states.map(0));
  CHECK_FALSE(states.is_mapped(0));
  CHECK(kv.map(1));
  CHECK_FALSE(kv.map(0));
  CHECK(resource.mapped_bytes() == resource.limit_bytes());
  states.unmap(2);
  CHECK(kv.map(0));
  CHECK(kv.mapped_extents() == 2);
  CHECK(states.mapped_extents() == 0);
  for (const std::int32_t extent : {-1, 3}) {
    CHECK_THROWS_WITH_AS(static_cast<void>(states.map(extent)), doctest::Contains("extent = "), InvalidArgument);
    CHECK_THROWS_WITH_AS(states.unmap(extent), doctest::Contains("extent = "), InvalidArgument);
    CHECK_THROWS_WITH_AS(static_cast<void>(states.is_mapped(extent)), doctest::Contains("extent = "), InvalidArgument);
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(kv.map(0)), doctest::Contains("must not be mapped"), InvalidArgument);
  CHECK_THROWS_WITH_AS(states.unmap(2), doctest::Contains("must be mapped"), InvalidArgument);
}

TEST_CASE("an extent that the system refuses at any call is not mapped in any tensor") {
  const std::size_t granule = device_granularity();
  const auto real = detail::native_virtual_memory(0);
  for (const bool unmap : {false, true}) {
    int refusals = 0;
    for (bool done = false; !done; ++refusals) {
      test::FakeDevice device{.granularity = granule, .unmaps_runs = real->unmaps_runs(), .real = real.get()};
      ElasticResource resource({.limit_bytes = 100 * granule}, std::make_unique<test::FakeVirtualMemory>(device));
      ElasticStore store(resource, elastic_states(granule), {.slots = 12});
      REQUIRE(store.map(1));
      paint(store, 1, 9);
      if (unmap) REQUIRE(store.map(2));
      const std::size_t before = resource.mapped_bytes();
      device.refuse_in = refusals + 1;
      if (!unmap) {
        done = store.map(2);
      } else {
        try {
          store.unmap(2);
          done = true;
        } catch (const BackendError&) {
        }
      }
      device.refuse_in = 0;
      CHECK(store.is_mapped(2) == (done != unmap));
      if (!done) {
        CHECK(resource.mapped_bytes() == before);
        if (unmap)
          store.unmap(2);
        else
          REQUIRE(store.map(2));
      }
      CHECK(is_painted(store, 1, 9));
      CHECK(device.broken == std::vector<std::string>{});
    }
    CHECK(refusals >= 3);
  }
}

TEST_CASE("conv states stay where they are when the extent of their slot comes and goes") {
  const std::size_t granule = device_granularity();
  const Stream stream = Stream::default_stream();
  ElasticResource resource({.limit_bytes = 40 * granule});
  ElasticStore store(resource, elastic_states(granule), {.slots = 8});
  const StateTensorView& conv = store.store().tensors()[0];
  fill_bytes(stream, conv.slot_data(SlotId{5}), std::byte{3}, conv.spec.natural_bytes());
  REQUIRE(store.map(1));
  store.unmap(1);
  std::vector<std::byte> seen(conv.spec.natural_bytes());
  copy_bytes(stream, seen.data(), conv.slot_data(SlotId{5}), seen.size());
  stream.synchronize();
  CHECK(std::ranges::count(seen, std::byte{3}) == static_cast<std::ptrdiff_t>(seen.size()));
}

TEST_CASE("a copier that was made when nothing was mapped copies between extents that are") {
  const std::size_t granule = device_granularity();
  const Stream stream = Stream::create();
  ElasticResource resource({.limit_bytes = 100 * granule});
  for (const StoreLayout layout : {StoreLayout::layer_major, StoreLayout::slot_major}) {
    constexpr std::int32_t slots = 40;
    ElasticStore store(resource, elastic_states(granule), {.slots = slots, .layout = layout});
    SlotCopier copier(store.store());
    const std::int32_t last = store.extents() - 1;
    REQUIRE(last > 1);
    REQUIRE(store.map(0));
    REQUIRE(store.map(last));
    paint(store, 0, 5);
    paint(store, last, 6);
    Stream::default_stream().synchronize();
    std::vector<SlotCopy> plan;
    for (std::int32_t slot = last * store.extent().count; slot < slots; ++slot)
      plan.push_back(SlotCopy::whole(slot - last * store.extent().count, slot));
    copier.copy_slots(stream, plan);
    stream.synchronize();
    CHECK(is_painted(store, last, 5));
  }
}

TEST_CASE("a graph captured before its extents lost and got memory replays on the new memory") {
  const std::size_t granule = device_granularity();
  const Stream stream = Stream::create();
  ElasticResource resource({.limit_bytes = 40 * granule});
  ElasticStore store(resource, elastic_states(granule), {.slots = 16});
  SlotCopier copier(store.store());
  const std::int32_t count = store.extent().count;
  std::vector<SlotCopy> plan;
  for (std::int32_t slot = 0; slot < count; ++slot) plan.push_back(SlotCopy::whole(slot, 2 * count + slot));
  REQUIRE(store.map(0));
  REQUIRE(store.map(2));
  const test::DeviceGraph graph(stream, [&] { copier.copy_slots(stream, plan); });
  for (unsigned char round = 1; round < 5; ++round) {
    for (const std::int32_t extent : {0, 2}) store.unmap(extent);
    REQUIRE(store.map(1 + 2 * (round % 2)));  // takes the memory that was the others'
    for (const std::int32_t extent : {2, 0}) REQUIRE(store.map(extent));
    paint(store, 0, round);
    Stream::default_stream().synchronize();
    graph.launch(stream);
    stream.synchronize();
    CHECK(is_painted(store, 2, round));
    store.unmap(1 + 2 * (round % 2));
  }
}

TEST_CASE("map and unmap of an extent allocate nothing") {
  const std::size_t granule = device_granularity();
  ElasticResource resource({.limit_bytes = 40 * granule});
  ElasticStore store(resource, elastic_states(granule), {.slots = 12});
  const std::uint64_t before = test::heap_allocations();
  for (std::int32_t extent = 0; extent < 3; ++extent) {
    REQUIRE(store.map(extent));
    store.unmap(extent);
  }
  CHECK(test::heap_allocations() == before);
}

TEST_CASE("random moves between two stores keep the limit, and the contents of all other extents") {
  test::for_each_seed(60, [](test::Random& random, std::uint64_t) {
    const std::size_t granule = device_granularity();
    const auto limit = static_cast<std::size_t>(random.between(1, 40));
    const auto layout = random.chance(50) ? StoreLayout::layer_major : StoreLayout::slot_major;
    ElasticResource resource({.limit_bytes = (limit + 1) * granule});
    ElasticStore states(resource, elastic_states(granule), {.slots = random.between32(1, 20), .layout = layout});
    ElasticStore kv(resource, elastic_kv(granule), {.slots = random.between32(1, 20)});
    const std::array stores = {&states, &kv};
    std::array<std::vector<int>, 2> model;  // -1: unmapped; otherwise the byte that fills the extent
    for (std::size_t i = 0; i < 2; ++i) model[i].assign(static_cast<std::size_t>(stores[i]->extents()), -1);
    auto mapped = static_cast<std::size_t>(states.fixed_bytes() + kv.fixed_bytes());
    for (int step = 0; step < 100; ++step) {
      const auto which = static_cast<std::size_t>(random.between(0, 1));
      ElasticStore& store = *stores[which];
      const std::int32_t extent = random.between32(0, store.extents() - 1);
      int& value = model[which][static_cast<std::size_t>(extent)];
      const auto bytes = static_cast<std::size_t>(store.extent().bytes);
      if (value < 0) {
        const bool done = store.map(extent);
        REQUIRE(done == (mapped + bytes <= resource.limit_bytes()));
        if (!done) continue;
        mapped += bytes;
        value = random.between32(0, 255);
        paint(store, extent, static_cast<unsigned char>(value));
      } else {
        REQUIRE(is_painted(store, extent, static_cast<unsigned char>(value)));
        store.unmap(extent);
        mapped -= bytes;
        value = -1;
      }
      REQUIRE(store.is_mapped(extent) == (value >= 0));
      REQUIRE(store.mapped_extents() == std::ranges::count_if(model[which], [](int filled) { return filled >= 0; }));
      REQUIRE(resource.mapped_bytes() == mapped);
      REQUIRE(resource.held_bytes() <= resource.limit_bytes());
    }
    for (std::size_t which = 0; which < 2; ++which)
      for (std::int32_t extent = 0; extent < stores[which]->extents(); ++extent)
        if (const int value = model[which][static_cast<std::size_t>(extent)]; value >= 0)
          REQUIRE(is_painted(*stores[which], extent, static_cast<unsigned char>(value)));
  });
}
