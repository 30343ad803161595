// SPDX-License-Identifier: Apache-2.0
// The calls that an ElasticResource makes to a vendor. A fake device answers.
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "elastic_fixtures.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>

using namespace stateport;
using stateport::test::Calls;
using stateport::test::elastic;
using stateport::test::fake_granule;
using stateport::test::FakeDevice;
using stateport::test::FakePlace;

namespace {

[[nodiscard]] std::size_t calls_of(const Calls& calls, const char* name) {
  return static_cast<std::size_t>(std::ranges::count(calls, name));
}

}  // namespace

TEST_CASE("an elastic allocation reserves addresses and no memory") {
  FakeDevice device;
  {
    ElasticResource resource = elastic(device, 10 * fake_granule);
    const FakePlace place(resource, 3 * fake_granule - 5);
    CHECK(device.calls == Calls{"reserve"});
    CHECK(device.reservations.begin()->second == 3 * fake_granule);
    CHECK(resource.mapped_bytes() == 0);
    CHECK(resource.held_bytes() == 0);
    CHECK(resource.limit_bytes() == 10 * fake_granule);
  }
  CHECK(device.reservations.empty());
  CHECK(device.broken == Calls{});
}

TEST_CASE("a map creates memory, puts it behind each granule and gives access once") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 10 * fake_granule);
  const FakePlace place(resource, 8 * fake_granule);
  device.calls.clear();
  CHECK(resource.map(place.base + fake_granule, 2 * fake_granule));
  CHECK(device.calls == Calls{"create", "create", "map", "map", "allow"});
  CHECK(resource.mapped_bytes() == 2 * fake_granule);
  CHECK(resource.is_mapped(place.base + fake_granule, 2 * fake_granule));
  CHECK_FALSE(resource.is_mapped(place.base, 2 * fake_granule));
  CHECK_FALSE(resource.is_mapped(place.base + 2 * fake_granule, 2 * fake_granule));
  CHECK(device.broken == Calls{});
}

TEST_CASE("memory that was unmapped is used by the next map, wherever it is") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 4 * fake_granule);
  const FakePlace kv(resource, 8 * fake_granule);
  const FakePlace states(resource, 8 * fake_granule);
  CHECK(resource.map(kv.base, 4 * fake_granule));
  device.calls.clear();
  resource.unmap(kv.base, 4 * fake_granule);
  CHECK(device.calls == Calls{"unmap", "unmap", "unmap", "unmap"});
  CHECK(resource.mapped_bytes() == 0);
  CHECK(resource.held_bytes() == 4 * fake_granule);
  device.calls.clear();
  CHECK(resource.map(states.base, 3 * fake_granule));
  CHECK(calls_of(device.calls, "create") == 0);
  CHECK(resource.held_bytes() == 4 * fake_granule);
  resource.trim();
  CHECK(resource.held_bytes() == 3 * fake_granule);
  CHECK(device.physical_bytes == 3 * fake_granule);
  CHECK(device.physical_bytes_max == 4 * fake_granule);
  CHECK(device.broken == Calls{});
}

TEST_CASE("a device that unmaps runs is asked once") {
  FakeDevice device{.unmaps_runs = true};
  ElasticResource resource = elastic(device, 8 * fake_granule);
  const FakePlace place(resource, 8 * fake_granule);
  CHECK(resource.map(place.base, 4 * fake_granule));
  CHECK(resource.map(place.base + 4 * fake_granule, 2 * fake_granule));
  device.calls.clear();
  resource.unmap(place.base + fake_granule, 4 * fake_granule);
  CHECK(device.calls == Calls{"unmap"});
  CHECK(resource.mapped_bytes() == 2 * fake_granule);
  CHECK(device.broken == Calls{});
}

TEST_CASE("an allocation that goes back unmaps its memory, and a resource that goes releases it") {
  for (const bool unmaps_runs : {false, true}) {
    FakeDevice device{.unmaps_runs = unmaps_runs};
    {
      ElasticResource resource = elastic(device, 8 * fake_granule);
      {
        const FakePlace place(resource, 8 * fake_granule);
        CHECK(resource.map(place.base, 2 * fake_granule));
        CHECK(resource.map(place.base + 4 * fake_granule, 3 * fake_granule));
      }
      CHECK(device.mappings.empty());
      CHECK(device.reservations.empty());
      CHECK(resource.mapped_bytes() == 0);
      CHECK(resource.held_bytes() == 5 * fake_granule);
    }
    CHECK(device.handles.empty());
    CHECK(device.physical_bytes == 0);
    CHECK(device.broken == Calls{});
  }
}

TEST_CASE("memory that the system does not unmap from an allocation that goes back is released with it") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 8 * fake_granule);
  auto place = std::make_unique<FakePlace>(resource, 4 * fake_granule);
  CHECK(resource.map(place->base, 2 * fake_granule));
  device.refuse_in = 1;
  place.reset();
  CHECK(resource.mapped_bytes() == 0);
  CHECK(resource.held_bytes() == fake_granule);
}

TEST_CASE("a granularity is a power of two and a multiple of the device's own") {
  FakeDevice device;
  for (const std::size_t wrong : {fake_granule / 2, 3 * fake_granule, fake_granule + 1})
    CHECK_THROWS_WITH_AS(elastic(device, fake_granule, wrong), doctest::Contains("granularity_bytes"), InvalidArgument);
  CHECK_THROWS_WITH_AS(elastic(device, 0), doctest::Contains("limit_bytes"), InvalidArgument);
  ElasticResource resource = elastic(device, 100 * fake_granule, 4 * fake_granule);
  CHECK(resource.granularity() == 4 * fake_granule);
  const FakePlace place(resource, fake_granule);
  CHECK(reinterpret_cast<std::uintptr_t>(place.base) % (4 * fake_granule) == 0);
  CHECK_THROWS_AS(static_cast<void>(resource.map(place.base, fake_granule)), InvalidArgument);
  CHECK(resource.map(place.base, 4 * fake_granule));
  CHECK(device.mappings.begin()->second.bytes == 4 * fake_granule);
  CHECK(device.broken == Calls{});
}

TEST_CASE("a limit that is no multiple of the granularity is never exceeded") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 3 * fake_granule - 1);
  const FakePlace place(resource, 8 * fake_granule);
  CHECK_FALSE(resource.map(place.base, 3 * fake_granule));
  CHECK(resource.map(place.base, 2 * fake_granule));
  CHECK_FALSE(resource.map(place.base + 2 * fake_granule, fake_granule));
  CHECK(resource.mapped_bytes() == 2 * fake_granule);
  CHECK(device.physical_bytes_max == 2 * fake_granule);
}

TEST_CASE("addresses that the system does not have are out of memory") {
  FakeDevice device;
  ElasticResource resource = elastic(device, fake_granule);
  const Stream stream = Stream::default_stream();
  for (const std::size_t bytes : {std::size_t{1} << 50U, SIZE_MAX - fake_granule, SIZE_MAX})
    CHECK_THROWS_AS(static_cast<void>(resource.allocate(bytes, 256, stream)), OutOfMemory);
  device.refuse_in = 1;
  CHECK_THROWS_AS(static_cast<void>(resource.allocate(fake_granule, 256, stream)), OutOfMemory);
  CHECK(device.reservations.empty());
}
