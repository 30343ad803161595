// SPDX-License-Identifier: Apache-2.0
// How an ElasticResource takes a refusal of each call that it makes to a vendor. A fake device refuses.
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "elastic_fixtures.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::Calls;
using stateport::test::elastic;
using stateport::test::fake_granule;
using stateport::test::FakeDevice;
using stateport::test::FakePlace;

namespace {

/// All that a refused call may not change.
struct MemorySnapshot {
  explicit MemorySnapshot(const FakeDevice& device, const ElasticResource& resource)
      : mappings(device.mappings),
        reservations(device.reservations.size()),
        physical_bytes(device.physical_bytes),
        mapped_bytes(resource.mapped_bytes()),
        held_bytes(resource.held_bytes()) {
    for (auto& [address, mapping] : mappings) mapping.handle = 0;  // equal memory by another handle
  }
  friend bool operator==(const MemorySnapshot&, const MemorySnapshot&) = default;

  std::map<std::uintptr_t, FakeDevice::Mapping> mappings;
  std::size_t reservations;
  std::size_t physical_bytes;
  std::size_t mapped_bytes;
  std::size_t held_bytes;
};

}  // namespace

TEST_CASE("a map that the system refuses at any call changes nothing") {
  for (const std::size_t kept : {0U, 2U}) {
    int refusals = 0;
    for (int call = 1;; ++call) {
      FakeDevice device;
      ElasticResource resource = elastic(device, 20 * fake_granule);
      const FakePlace place(resource, 20 * fake_granule);
      CHECK(resource.map(place.base + 10 * fake_granule, 3 * fake_granule));
      if (kept > 0) resource.unmap(place.base + 10 * fake_granule, kept * fake_granule);  // handles that wait
      const MemorySnapshot before(device, resource);
      const MemoryRange ranges[] = {place.at(0, 2), place.at(3, 1), place.at(4, 3)};
      device.refuse_in = call;
      const bool done = resource.map(ranges);
      CHECK(device.broken == Calls{});
      if (done) {
        CHECK(device.refused == 0);
        break;
      }
      ++refusals;
      CHECK(MemorySnapshot(device, resource) == before);
      device.refuse_in = 0;
      CHECK(resource.map(ranges));  // it works again
    }
    CHECK(refusals == 6 - static_cast<int>(kept) + 6 + 3);  // creates, maps, accesses
  }
}

TEST_CASE("an unmap that the system refuses at any call leaves everything mapped") {
  for (const bool unmaps_runs : {false, true}) {
    int refusals = 0;
    for (int call = 1;; ++call) {
      FakeDevice device{.unmaps_runs = unmaps_runs};
      ElasticResource resource = elastic(device, 20 * fake_granule);
      const FakePlace place(resource, 20 * fake_granule);
      CHECK(resource.map(place.base, 10 * fake_granule));
      const MemorySnapshot before(device, resource);
      const MemoryRange ranges[] = {place.at(0, 2), place.at(3, 1), place.at(4, 3)};
      device.refuse_in = call;
      bool done = true;
      try {
        resource.unmap(ranges);
      } catch (const BackendError& refused) {
        done = false;
        CHECK(std::string(refused.what()).find("the fake device says no") != std::string::npos);
      }
      CHECK(device.broken == Calls{});
      if (done) break;
      ++refusals;
      CHECK(MemorySnapshot(device, resource) == before);
      resource.unmap(ranges);
      CHECK(resource.mapped_bytes() == 4 * fake_granule);
    }
    CHECK(refusals == (unmaps_runs ? 3 : 6));
  }
}

TEST_CASE("memory that cannot be taken back after a refusal counts as mapped") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 20 * fake_granule);
  const FakePlace place(resource, 20 * fake_granule);
  device.refuse_in = 2 + 2 + 1;  // the access, and the first unmap
  device.refuse_count = 2;
  CHECK_THROWS_AS(static_cast<void>(resource.map(place.base, 2 * fake_granule)), BackendError);
  CHECK(device.refused == 2);
  CHECK(device.mappings.size() == 1);
  CHECK(resource.mapped_bytes() == fake_granule);
  CHECK(resource.is_mapped(place.base, fake_granule));
  resource.unmap(place.base, fake_granule);
  CHECK(resource.mapped_bytes() == 0);
  CHECK(device.broken == Calls{});
}

TEST_CASE("memory that cannot be put back after a refused unmap counts as unmapped") {
  FakeDevice device;
  ElasticResource resource = elastic(device, 20 * fake_granule);
  const FakePlace place(resource, 20 * fake_granule);
  CHECK(resource.map(place.base, 3 * fake_granule));
  device.refuse_in = 3;  // the third granule, and the first one's way back
  device.refuse_count = 2;
  CHECK_THROWS_AS(resource.unmap(place.base, 3 * fake_granule), BackendError);
  CHECK(device.mappings.size() == 2);
  CHECK(resource.mapped_bytes() == 2 * fake_granule);
  CHECK_FALSE(resource.is_mapped(place.base, fake_granule));
  CHECK(resource.is_mapped(place.base + fake_granule, 2 * fake_granule));
  CHECK(device.broken == Calls{});
}

TEST_CASE("random calls with random refusals keep to the device's rules and to a plain model") {
  const auto body = [](test::Random& random, std::uint64_t) {
    FakeDevice device{.unmaps_runs = random.chance(50)};
    const auto limit = static_cast<std::size_t>(random.between(1, 30));
    ElasticResource resource = elastic(device, limit * fake_granule);
    constexpr std::size_t granules = 24;
    const FakePlace places[] = {{resource, granules * fake_granule}, {resource, granules * fake_granule}};
    std::vector<bool> model[] = {std::vector<bool>(granules), std::vector<bool>(granules)};
    for (int step = 0; step < 300; ++step) {
      const auto place = static_cast<std::size_t>(random.between(0, 1));
      const auto first = static_cast<std::size_t>(random.between(0, granules - 1));
      const auto count = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(granules - first)));
      const auto begin = model[place].begin() + static_cast<std::ptrdiff_t>(first);
      const auto end = begin + static_cast<std::ptrdiff_t>(count);
      const bool wants_map = random.chance(55);
      const bool fits = std::count(begin, end, wants_map) == 0;
      const MemoryRange range = places[place].at(first, count);
      const std::size_t mapped = resource.mapped_bytes();
      device.refuse_in = random.chance(20) ? random.between32(1, 20) : 0;
      device.refused = 0;
      if (!fits) {
        if (wants_map)
          CHECK_THROWS_AS(static_cast<void>(resource.map({&range, 1})), InvalidArgument);
        else
          CHECK_THROWS_AS(resource.unmap({&range, 1}), InvalidArgument);
      } else if (wants_map) {
        const bool done = resource.map({&range, 1});
        REQUIRE(done == (mapped + count * fake_granule <= limit * fake_granule && device.refused == 0));
        if (done) std::fill(begin, end, true);
      } else {
        bool done = true;
        try {
          resource.unmap({&range, 1});
        } catch (const BackendError&) {
          done = false;
        }
        REQUIRE(done == (device.refused == 0));
        if (done) std::fill(begin, end, false);
      }
      if (random.chance(5)) resource.trim();
      const auto expected = std::ranges::count(model[0], true) + std::ranges::count(model[1], true);
      REQUIRE(resource.mapped_bytes() == static_cast<std::size_t>(expected) * fake_granule);
      REQUIRE(device.mappings.size() == static_cast<std::size_t>(expected));
      REQUIRE(device.physical_bytes == resource.held_bytes());
      REQUIRE(resource.held_bytes() <= limit * fake_granule);
      REQUIRE(std::ranges::all_of(device.mappings, [](const auto& mapping) { return mapping.second.allowed; }));
      REQUIRE(device.broken == Calls{});
    }
    device.refuse_in = 0;
  };
  test::for_each_seed(200, body);
}
