// SPDX-License-Identifier: Apache-2.0
// Memory of the build's own device that comes and goes.
#include <stateport/backends/elastic_resource.hpp>

#include <stateport/backends/device.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "memory_fixtures.hpp"
#include "random.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

using namespace stateport;
using stateport::test::painted;

namespace {

ElasticResource::Options elastic_options(std::size_t granules) {
  static const std::size_t granule = ElasticResource({.limit_bytes = 1}).granularity();
  return {.limit_bytes = granules * granule};
}

/// Addresses for `granules`, which go back by themselves.
struct ElasticPlace {
  ElasticPlace(ElasticResource& owner, std::size_t granules)
      : resource(owner),
        bytes(granules * owner.granularity()),
        base(static_cast<std::byte*>(owner.allocate(bytes, 256, Stream::default_stream()))) {}
  ElasticPlace(const ElasticPlace&) = delete;
  ElasticPlace& operator=(const ElasticPlace&) = delete;
  ~ElasticPlace() { resource.deallocate(base, bytes, 256, Stream::default_stream()); }

  [[nodiscard]] std::byte* at(std::size_t granule) const { return base + granule * resource.granularity(); }

  ElasticResource& resource;
  std::size_t bytes;
  std::byte* base;
};

void paint_granules(void* memory, std::size_t bytes, unsigned char value) {
  fill_bytes(Stream::default_stream(), memory, std::byte{value}, bytes);
}

/// Whether the host's use of the address ends the program.
bool host_faults(volatile std::byte* address) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    *address = std::byte{1};
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST_CASE("an elastic resource is device memory and equal to itself alone") {
  ElasticResource first(elastic_options(4));
  ElasticResource second(elastic_options(4));
  CHECK(first.kind() == MemoryKind::device);
  CHECK(first == first);
  CHECK_FALSE(first == second);
  CHECK(first.granularity() % MemoryResource::max_alignment == 0);
  CHECK(first.limit_bytes() == 4 * first.granularity());
}

TEST_CASE("elastic allocations are addresses at multiples of the granularity, for more bytes than memory has") {
  ElasticResource resource(elastic_options(2));
  const Stream stream = Stream::default_stream();
  for (const std::size_t bytes : {std::size_t{1}, resource.granularity() + 1, std::size_t{1} << 34U}) {
    void* const memory = resource.allocate(bytes, 4096, stream);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % resource.granularity() == 0);
    CHECK(resource.mapped_bytes() == 0);
    CHECK_FALSE(resource.is_mapped(memory, resource.granularity()));
    resource.deallocate(memory, bytes, 4096, stream);
  }
  CHECK_THROWS_AS(static_cast<void>(resource.allocate(SIZE_MAX, 256, stream)), OutOfMemory);
}

TEST_CASE("a map above the limit changes nothing, and one up to it succeeds") {
  ElasticResource resource(elastic_options(3));
  const ElasticPlace place(resource, 8);
  const std::size_t granule = resource.granularity();
  CHECK(resource.map(place.at(0), 2 * granule));
  CHECK_FALSE(resource.map(place.at(4), 2 * granule));
  CHECK(resource.mapped_bytes() == 2 * granule);
  CHECK_FALSE(resource.is_mapped(place.at(4), granule));
  const MemoryRange ranges[] = {{.address = place.at(3), .bytes = granule}, {.address = place.at(5), .bytes = granule}};
  CHECK_FALSE(resource.map(ranges));
  CHECK(resource.map(place.at(7), granule));
  CHECK(resource.mapped_bytes() == resource.limit_bytes());
  CHECK(resource.map(std::span<const MemoryRange>{}));  // nothing is above no limit
}

TEST_CASE("ranges that are no whole granules of one allocation, or mapped already, are refused by name") {
  ElasticResource resource(elastic_options(8));
  const ElasticPlace place(resource, 4);
  const std::size_t granule = resource.granularity();
  REQUIRE(resource.map(place.at(1), granule));
  const auto refused = [&](void* address, std::size_t bytes, const char* text) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(static_cast<void>(resource.map(address, bytes)), doctest::Contains(text), InvalidArgument);
    CHECK_THROWS_WITH_AS(resource.unmap(address, bytes), doctest::Contains(text), InvalidArgument);
    CHECK_THROWS_WITH_AS(static_cast<void>(resource.is_mapped(address, bytes)), doctest::Contains(text),
                         InvalidArgument);
  };
  refused(place.at(0), 0, "bytes = 0 (must be a whole multiple");
  refused(place.at(0), granule + 1, "must be a whole multiple");
  refused(place.at(0) + 1, granule, "must be a multiple of the granularity");
  refused(place.at(3), 2 * granule, "must end within the allocation");
  refused(place.at(4), granule, "is in no allocation");
  refused(nullptr, granule, "is in no allocation");
  CHECK_THROWS_WITH_AS(static_cast<void>(resource.map(place.at(0), 2 * granule)), doctest::Contains("not be mapped"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(resource.unmap(place.at(1), 2 * granule), doctest::Contains("must be mapped"), InvalidArgument);
  const MemoryRange twice[] = {{.address = place.at(2), .bytes = 2 * granule},
                               {.address = place.at(3), .bytes = granule}};
  CHECK_THROWS_WITH_AS(static_cast<void>(resource.map(twice)), doctest::Contains("end of the range before"),
                       InvalidArgument);
  CHECK(resource.mapped_bytes() == granule);
  CHECK_FALSE(resource.is_mapped(place.at(0), granule));
  CHECK(resource.is_mapped(place.at(1), granule));
}

TEST_CASE("memory that was never mapped, or is unmapped again, faults on a host") {
  if (!backend_info().host_reads_device_memory) return;
  for (const std::size_t granule : {std::size_t{1} << 20U, std::size_t{2} << 20U}) {  // the second has huge pages
    ElasticResource resource({.limit_bytes = std::size_t{16} << 20U, .granularity_bytes = granule});
    const ElasticPlace place(resource, 4);
    REQUIRE(resource.map(place.at(1), resource.granularity()));
    CHECK(host_faults(place.at(0) + resource.granularity() - 1));
    CHECK_FALSE(host_faults(place.at(1)));
    CHECK_FALSE(host_faults(place.at(2) - 1));
    CHECK(host_faults(place.at(2)));
    paint_granules(place.at(1), resource.granularity(), 7);
    resource.unmap(place.at(1), resource.granularity());
    CHECK(host_faults(place.at(1)));
    REQUIRE(resource.map(place.at(1), resource.granularity()));
    CHECK(painted(place.at(1), resource.granularity(), 0, Stream::default_stream()));  // the system took its pages
  }
}

TEST_CASE("map and unmap allocate nothing") {
  ElasticResource resource(elastic_options(16));
  const ElasticPlace first(resource, 20);
  const ElasticPlace second(resource, 20);
  const std::size_t granule = resource.granularity();
  const std::uint64_t before = test::heap_allocations();
  for (int round = 0; round < 3; ++round) {
    REQUIRE(resource.map(first.at(2), 16 * granule));
    const bool above = resource.map(second.at(0), granule);
    resource.unmap(first.at(2), 16 * granule);
    REQUIRE(resource.map(second.at(4), 16 * granule));
    resource.unmap(second.at(4), 16 * granule);
    REQUIRE_FALSE(above);
  }
  CHECK(test::heap_allocations() == before);
}

TEST_CASE("random maps, unmaps and allocations keep the limit and the contents of everything else") {
  const auto body = [](test::Random& random, std::uint64_t) {
    constexpr std::size_t granules = 12;
    const auto limit = static_cast<std::size_t>(random.between(1, 30));
    ElasticResource resource(elastic_options(limit));
    const std::size_t granule = resource.granularity();
    const Stream stream = Stream::default_stream();
    std::array<std::optional<ElasticPlace>, 3> places;
    std::array<std::array<int, granules>, 3> model;  // -1: unmapped; otherwise the byte that fills the granule
    for (auto& one : model) one.fill(-1);
    std::size_t mapped = 0;
    for (int step = 0; step < 120; ++step) {
      const auto which = static_cast<std::size_t>(random.between(0, 2));
      if (!places[which]) {
        places[which].emplace(resource, granules);
      } else if (random.chance(4)) {
        places[which].reset();
        for (int& value : model[which]) mapped -= value >= 0 ? 1 : 0, value = -1;
      } else {
        const auto first = static_cast<std::size_t>(random.between(0, granules - 1));
        const auto count = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(granules - first)));
        const auto run = std::span(model[which]).subspan(first, count);
        const bool is_mapped = run[0] >= 0;
        const bool alike = std::ranges::all_of(run, [&](int value) { return (value >= 0) == is_mapped; });
        std::byte* const address = places[which]->at(first);
        if (!alike) {
          CHECK_THROWS_AS(static_cast<void>(resource.map(address, count * granule)), InvalidArgument);
          CHECK_THROWS_AS(resource.unmap(address, count * granule), InvalidArgument);
        } else if (is_mapped) {
          for (std::size_t i = 0; i < count; ++i)
            REQUIRE(painted(address + i * granule, granule, static_cast<unsigned char>(run[i]), stream));
          resource.unmap(address, count * granule);
          std::ranges::fill(run, -1);
          mapped -= count;
        } else {
          const bool done = resource.map(address, count * granule);
          REQUIRE(done == (mapped + count <= limit));
          const auto value = static_cast<unsigned char>(random.between(0, 255));
          if (done) paint_granules(address, count * granule, value);
          if (done) std::ranges::fill(run, value);
          if (done) mapped += count;
        }
      }
      REQUIRE(resource.mapped_bytes() == mapped * granule);
      REQUIRE(resource.held_bytes() >= resource.mapped_bytes());
      REQUIRE(resource.held_bytes() <= resource.limit_bytes());
      if (random.chance(3)) resource.trim();
    }
    for (std::size_t which = 0; which < places.size(); ++which)
      for (std::size_t i = 0; places[which] && i < granules; ++i)
        if (model[which][i] >= 0)
          REQUIRE(painted(places[which]->at(i), granule, static_cast<unsigned char>(model[which][i]), stream));
  };
  test::for_each_seed(100, body);
}

TEST_CASE("several threads map and unmap under one limit") {
  ElasticResource resource(elastic_options(8));
  const std::size_t granule = resource.granularity();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned char thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&, thread] {
      test::Random random(thread);
      const Stream stream = Stream::create();
      const ElasticPlace place(resource, 6);
      for (int round = 0; round < 200; ++round) {
        const auto bytes = static_cast<std::size_t>(random.between(1, 6)) * granule;
        if (!resource.map(place.base, bytes)) continue;
        if (resource.mapped_bytes() > resource.limit_bytes()) ++wrong;
        fill_bytes(stream, place.base, std::byte{thread}, bytes);
        if (!painted(place.base, bytes, thread, stream)) ++wrong;
        resource.unmap(place.base, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(resource.mapped_bytes() == 0);
  CHECK(resource.held_bytes() <= resource.limit_bytes());
}
