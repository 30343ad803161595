// SPDX-License-Identifier: Apache-2.0
// Rules of every resource. Each resource has a test of its own for further rules.
#include <stateport/backends/memory_resource.hpp>

#include <stateport/backends/host_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "memory_fixtures.hpp"
#include "random.hpp"
#include "statistics_resource.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

using stateport::InvalidArgument;
using stateport::MemoryKind;
using stateport::MemoryResource;
using stateport::OutOfMemory;
using stateport::Stream;
using stateport::test::every_resource;
using stateport::test::painted;

namespace {

/// One allocation, and the byte that fills it.
struct Piece {
  void* memory;
  std::size_t bytes;
  std::size_t alignment;
  unsigned char value;
};

[[nodiscard]] bool is_aligned(const void* memory, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

[[nodiscard]] Piece random_piece(MemoryResource& resource, const Stream& stream, stateport::test::Random& random) {
  const std::size_t alignment = std::size_t{1} << random.between(0, 12);
  const auto bytes =
      static_cast<std::size_t>(random.between(0, 1) == 0 ? random.between(1, 40) : random.between(1, 30'000));
  const Piece piece{resource.allocate(bytes, alignment, stream), bytes, alignment,
                    static_cast<unsigned char>(random.bits())};
  stateport::test::paint(resource.kind(), piece.memory, piece.bytes, piece.value, stream);
  return piece;
}

void give_back(MemoryResource& resource, const Piece& piece, const Stream& stream) {
  resource.deallocate(piece.memory, piece.bytes, piece.alignment, stream);
}

}  // namespace

TEST_CASE("every resource answers zero bytes with nullptr and takes nullptr back") {
  const Stream stream = Stream::default_stream();
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    CHECK(resource->allocate(0, 1, stream) == nullptr);
    CHECK(resource->allocate(0, MemoryResource::max_alignment, stream) == nullptr);
    resource->deallocate(nullptr, 0, 1, stream);
    resource->deallocate(nullptr, 16, 16, stream);
    check();
  }
}

TEST_CASE("every resource aligns as asked, up to 4096 bytes, odd sizes included") {
  const Stream stream = Stream::default_stream();
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    for (std::size_t alignment = 1; alignment <= MemoryResource::max_alignment; alignment *= 2) {
      CAPTURE(alignment);
      std::vector<Piece> pieces;
      for (const std::size_t bytes : {1U, 3U, 255U, 256U, 257U, 4095U, 4096U, 4097U, 100'000U})
        pieces.push_back({resource->allocate(bytes, alignment, stream), bytes, alignment, 0});
      for (const Piece& piece : pieces) CHECK(is_aligned(piece.memory, alignment));
      for (const Piece& piece : pieces) give_back(*resource, piece, stream);
      check();
    }
  }
}

TEST_CASE("every resource refuses an alignment that is no power of two up to 4096") {
  const Stream stream = Stream::default_stream();
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    for (const std::size_t alignment : {0U, 3U, 48U, 4095U, 8192U}) {
      CHECK_THROWS_AS(static_cast<void>(resource->allocate(64, alignment, stream)), InvalidArgument);
      CHECK_THROWS_AS(static_cast<void>(resource->allocate(0, alignment, stream)), InvalidArgument);
    }
    check();
  }
}

TEST_CASE("every resource answers exhaustion with the bytes required, and works on") {
  const Stream stream = Stream::default_stream();
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    for (const std::size_t bytes : {std::size_t{1} << 55, std::numeric_limits<std::size_t>::max() - 4096,
                                    std::numeric_limits<std::size_t>::max()}) {
      CAPTURE(bytes);
      try {
        static_cast<void>(resource->allocate(bytes, 256, stream));
        FAIL("memory came from nowhere");
      } catch (const OutOfMemory& exhausted) {
        CHECK(exhausted.required_bytes() == bytes);
        CHECK(exhausted.available_bytes() < bytes);
      }
    }
    const Piece piece{resource->allocate(64, 64, stream), 64, 64, 0};
    CHECK(piece.memory != nullptr);
    give_back(*resource, piece, stream);
    check();
  }
}

TEST_CASE("no two live allocations of a resource share a byte") {
  const Stream stream = Stream::create();
  const auto body = [&](stateport::test::Random& random, std::uint64_t) {
    for (auto& [name, upstreams, resource, check] : every_resource()) {
      CAPTURE(name);
      std::vector<Piece> live;
      for (int step = 0; step < 60; ++step) {
        if (live.empty() || random.chance(60)) {
          live.push_back(random_piece(*resource, stream, random));
        } else {
          std::swap(live[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(live.size()) - 1))],
                    live.back());
          REQUIRE(painted(live.back().memory, live.back().bytes, live.back().value, stream));
          give_back(*resource, live.back(), stream);
          live.pop_back();
        }
        check();
      }
      for (const Piece& piece : live) {
        REQUIRE(painted(piece.memory, piece.bytes, piece.value, stream));
        give_back(*resource, piece, stream);
      }
      check();
    }
  };
  stateport::test::for_each_seed(20, body);
}

TEST_CASE("every resource may be called by several threads at once") {
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    if (name == "callback") continue;  // as thread-safe as the engine's functions
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      threads.emplace_back([&, &resource = resource, seed] {
        stateport::test::Random random(seed);
        const Stream stream = Stream::create();
        for (int round = 0; round < 40; ++round) {
          std::vector<Piece> pieces;
          for (int i = 0; i < 5; ++i) pieces.push_back(random_piece(*resource, stream, random));
          for (const Piece& piece : pieces) {
            if (!painted(piece.memory, piece.bytes, piece.value, stream)) ++wrong;
            give_back(*resource, piece, stream);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    check();
  }
}

TEST_CASE("resources that share a heap or a device are equal, others are not") {
  const auto first = every_resource();
  const auto second = every_resource();
  for (std::size_t i = 0; i < first.size(); ++i) {
    CAPTURE(first[i].name);
    const bool shared = first[i].upstreams.empty() && first[i].name != "callback";
    CHECK(*first[i].resource == *first[i].resource);
    CHECK((*first[i].resource == *second[i].resource) == shared);
    CHECK_FALSE(*first[i].resource == *first[(i + 1) % first.size()].resource);
  }
}

TEST_CASE("an adaptor has the kind of its upstream") {
  for (const auto& under_test : every_resource())
    for (const auto& upstream : under_test.upstreams) CHECK(under_test.resource->kind() == upstream->kind());
  CHECK(to_string(MemoryKind::device) == "device");
  CHECK(to_string(MemoryKind::pinned_host) == "pinned_host");
  CHECK(to_string(MemoryKind::host) == "host");
}

TEST_CASE("memory may go back to an equal resource") {
  const Stream stream = Stream::default_stream();
  stateport::HostResource first;
  stateport::HostResource second;
  void* const memory = first.allocate(100, 64, stream);
  second.deallocate(memory, 100, 64, stream);
}

TEST_CASE("memory with huge pages is whole, at any size, and may go back to a resource without them") {
  const Stream stream = Stream::default_stream();
  stateport::HostResource huge({.huge_pages = true});
  stateport::HostResource plain;
  constexpr std::size_t mib = std::size_t{1} << 20;
  for (const std::size_t bytes : {4 * mib - 1, 4 * mib, 4 * mib + 1, 7 * mib, 33 * mib}) {
    auto* const memory = static_cast<unsigned char*>(huge.allocate(bytes, 64, stream));
    for (std::size_t at = 0; at < bytes; at += 4096) memory[at] = static_cast<unsigned char>(at >> 12U);
    bool whole = true;
    for (std::size_t at = 0; at < bytes; at += 4096)
      whole = whole && memory[at] == static_cast<unsigned char>(at >> 12U);
    CHECK(whole);
    plain.deallocate(memory, bytes, 64, stream);
  }
}

#ifdef STATEPORT_ENABLE_ASSERT
TEST_CASE("builds with assertions stop at memory that is given back wrongly") {
  using stateport::test::aborts;
  const Stream stream = Stream::default_stream();
  for (auto& [name, upstreams, resource, check] : every_resource()) {
    CAPTURE(name);
    MemoryResource& under_test = *resource;
    void* const memory = under_test.allocate(100, 64, stream);
    CHECK(aborts([&] { under_test.deallocate(static_cast<char*>(memory) + 64, 36, 64, stream); }));
    CHECK(aborts([&] { under_test.deallocate(memory, 99, 64, stream); }));
    CHECK(aborts([&] { under_test.deallocate(memory, 100, 32, stream); }));
    CHECK(aborts([&] {
      stateport::HostResource host;
      stateport::test::StatisticsResource other(host);
      other.deallocate(memory, 100, 64, stream);
    }));
    under_test.deallocate(memory, 100, 64, stream);
    CHECK(aborts([&] { under_test.deallocate(memory, 100, 64, stream); }));
  }
}

TEST_CASE("builds with assertions stop at an adaptor that is outlived by its memory") {
  CHECK(stateport::test::aborts([] {
    stateport::HostResource host;
    stateport::test::StatisticsResource counted(host);
    static_cast<void>(counted.allocate(100, 64, Stream::default_stream()));
  }));
}
#endif
