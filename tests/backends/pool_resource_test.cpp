// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/pool_resource.hpp>

#include <stateport/backends/failing_resource.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/limit_resource.hpp>
#include <stateport/backends/statistics_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "memory_fixtures.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

using stateport::FailingResource;
using stateport::HostResource;
using stateport::InvalidArgument;
using stateport::LimitResource;
using stateport::OutOfMemory;
using stateport::PoolResource;
using stateport::StatisticsResource;
using stateport::Stream;

namespace {

constexpr std::size_t kib = 1024;

/// A pool of host memory with its upstream counted.
struct CountedPool {
  explicit CountedPool(PoolResource::Options options) : pool(upstream, options) {}

  HostResource host;
  StatisticsResource upstream{host};
  PoolResource pool;

  [[nodiscard]] void* take(std::size_t bytes, const Stream& stream) { return pool.allocate(bytes, 256, stream); }
  void give(void* memory, std::size_t bytes, const Stream& stream) { pool.deallocate(memory, bytes, 256, stream); }
  [[nodiscard]] std::uint64_t slabs() const { return upstream.statistics().allocations; }
};

struct Request {
  std::size_t bytes;
  std::size_t alignment;
};

[[nodiscard]] Request random_request(stateport::test::Random& random) {
  const std::int64_t largest = std::int64_t{1} << random.between(0, 17);
  return {static_cast<std::size_t>(random.between(1, largest)), std::size_t{1} << random.between(0, 12)};
}

}  // namespace

TEST_CASE("a pool takes slabs, cuts blocks of 256 bytes and joins what comes back") {
  const Stream stream = Stream::default_stream();
  CountedPool counted({.initial_bytes = 4 * kib, .slab_bytes = 4 * kib});
  CHECK(counted.pool.reserved_bytes() == 4 * kib);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(counted.take(kib - 5, stream));
  CHECK(counted.pool.used_bytes() == 4 * kib);
  CHECK(counted.slabs() == 1);
  for (const int i : {1, 3, 0, 2}) {
    counted.give(blocks[static_cast<std::size_t>(i)], kib - 5, stream);
    counted.pool.check_invariants();
  }
  CHECK(counted.pool.used_bytes() == 0);
  void* const whole = counted.take(4 * kib, stream);
  CHECK(whole == blocks[0]);
  CHECK(counted.slabs() == 1);
  counted.give(whole, 4 * kib, stream);
}

TEST_CASE("a pool hands out the smallest block of a bin that fits") {
  const Stream stream = Stream::default_stream();
  constexpr std::size_t small_bytes = 33 * 256;
  constexpr std::size_t large_bytes = 35 * 256;  // of the same bin, which holds 32 to 35 granules
  constexpr std::size_t rest_bytes = 64 * kib - small_bytes - large_bytes - kib;
  CountedPool counted({.initial_bytes = 64 * kib, .slab_bytes = 64 * kib});
  void* const large = counted.take(large_bytes, stream);
  void* const wall = counted.take(kib, stream);
  void* const small = counted.take(small_bytes, stream);
  void* const rest = counted.take(rest_bytes, stream);
  for (const bool large_first : {true, false}) {
    counted.give(large_first ? large : small, large_first ? large_bytes : small_bytes, stream);
    counted.give(large_first ? small : large, large_first ? small_bytes : large_bytes, stream);
    CHECK(counted.take(small_bytes, stream) == small);
    CHECK(counted.take(large_bytes, stream) == large);
  }
  counted.give(small, small_bytes, stream);
  counted.give(large, large_bytes, stream);
  counted.give(wall, kib, stream);
  counted.give(rest, rest_bytes, stream);
  counted.pool.check_invariants();
}

TEST_CASE("a request larger than a slab gets a slab of its own") {
  const Stream stream = Stream::default_stream();
  CountedPool counted({.slab_bytes = 4 * kib});
  void* const large = counted.take(10 * kib, stream);
  CHECK(counted.pool.reserved_bytes() == 10 * kib);
  counted.give(large, 10 * kib, stream);
  CHECK(counted.pool.release_unused(stream) == 10 * kib);
  CHECK(counted.pool.reserved_bytes() == 0);
  CHECK(counted.upstream.statistics().live_bytes == 0);
}

TEST_CASE("a repeated pattern of sizes settles: neither upstream nor the heap is asked again") {
  const Stream stream = Stream::default_stream();
  const auto body = [&](stateport::test::Random& random, std::uint64_t) {
    CountedPool counted({.slab_bytes = 256 * kib});
    std::vector<Request> pattern(30);
    for (Request& request : pattern) request = random_request(random);
    std::vector<void*> blocks(pattern.size());
    std::uint64_t slabs = 0;
    std::uint64_t heap = 0;
    for (int round = 0; round < 8; ++round) {
      slabs = counted.slabs();
      heap = stateport::test::heap_allocations();
      for (std::size_t i = 0; i < pattern.size(); ++i)
        blocks[i] = counted.pool.allocate(pattern[i].bytes, pattern[i].alignment, stream);
      for (std::size_t i = 0; i < pattern.size(); ++i)
        counted.pool.deallocate(blocks[i], pattern[i].bytes, pattern[i].alignment, stream);
      slabs = counted.slabs() - slabs;
      heap = stateport::test::heap_allocations() - heap;
    }
    CHECK(slabs == 0);
#ifndef STATEPORT_ENABLE_ASSERT  // with assertions every allocation is remembered, on the heap
    CHECK(heap == 0);
#endif
  };
  stateport::test::for_each_seed(50, body);
}

TEST_CASE("a pool takes over blocks that another stream freed before it asks upstream") {
  const Stream first = Stream::create();
  const Stream second = Stream::create();
  CountedPool counted({.initial_bytes = 8 * kib, .slab_bytes = 8 * kib});
  void* const low = counted.take(4 * kib, first);
  void* const high = counted.take(4 * kib, first);
  counted.give(low, 4 * kib, first);
  CHECK(counted.take(4 * kib, second) == low);
  counted.give(low, 4 * kib, second);
  counted.give(high, 4 * kib, first);
  counted.pool.check_invariants();
  // Neither stream has 8 KiB in one piece; both together have.
  CHECK(counted.take(8 * kib, first) == low);
  CHECK(counted.slabs() == 1);
  counted.give(low, 8 * kib, first);
}

TEST_CASE("a pool that ends gives all its slabs back, whichever streams they were freed on") {
  HostResource host;
  StatisticsResource upstream(host);
  {
    PoolResource pool(upstream, {.slab_bytes = 64 * kib});
    const std::vector<Stream> streams = {Stream::default_stream(), Stream::create(), Stream::create()};
    std::vector<void*> taken;
    for (const Stream& stream : streams) taken.push_back(pool.allocate(64 * kib, 256, stream));
    for (std::size_t i = 0; i < streams.size(); ++i) pool.deallocate(taken[i], 64 * kib, 256, streams[i]);
    CHECK(upstream.statistics().live_bytes == streams.size() * 64 * kib);
  }
  CHECK(upstream.statistics().live_bytes == 0);
}

TEST_CASE("a pool prefers the blocks of the asking stream") {
  const Stream first = Stream::create();
  const Stream second = Stream::create();
  CountedPool counted({.initial_bytes = 8 * kib, .slab_bytes = 8 * kib});
  void* const low = counted.take(4 * kib, first);
  void* const high = counted.take(4 * kib, first);
  counted.give(low, 4 * kib, first);
  counted.give(high, 4 * kib, second);
  CHECK(counted.take(4 * kib, second) == high);
  CHECK(counted.take(4 * kib, first) == low);
  counted.give(low, 4 * kib, first);
  counted.give(high, 4 * kib, first);
}

TEST_CASE("a pool works with more streams than it tells apart") {
  CountedPool counted({.slab_bytes = 64 * kib});
  std::vector<Stream> streams;
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) streams.push_back(Stream::create());
  for (int round = 0; round < 2; ++round) {
    blocks.clear();
    for (const Stream& stream : streams) blocks.push_back(counted.take(kib, stream));
    for (std::size_t i = 0; i < streams.size(); ++i) counted.give(blocks[i], kib, streams[i]);
    counted.pool.check_invariants();
  }
  CHECK(counted.slabs() == 1);
}

TEST_CASE("an exhausted pool makes do with a smaller slab, then gives free slabs back, then says what is left") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  LimitResource limit(host, 16 * kib);
  PoolResource pool(limit, {.slab_bytes = 12 * kib});
  void* const low = pool.allocate(12 * kib, 256, stream);
  void* const high = pool.allocate(4 * kib, 256, stream);
  CHECK(pool.reserved_bytes() == 16 * kib);
  try {
    static_cast<void>(pool.allocate(3 * kib + 1, 256, stream));
    FAIL("memory came from nowhere");
  } catch (const OutOfMemory& exhausted) {
    CHECK(exhausted.required_bytes() == 3 * kib + 1);
    CHECK(exhausted.available_bytes() == 0);
  }
  pool.check_invariants();
  pool.deallocate(low, 12 * kib, 256, stream);
  pool.deallocate(high, 4 * kib, 256, stream);
  void* const whole = pool.allocate(16 * kib, 256, stream);
  CHECK(pool.reserved_bytes() == 16 * kib);
  pool.deallocate(whole, 16 * kib, 256, stream);
  pool.check_invariants();
}

TEST_CASE("a pool stays as it was when upstream fails, whichever call that is") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  StatisticsResource counted(host);
  FailingResource failing(counted);
  for (std::uint64_t call = 1; call <= 6; ++call) {
    failing.fail_at(call, 2);
    std::optional<PoolResource> pool;
    try {
      pool.emplace(failing, PoolResource::Options{.initial_bytes = 4 * kib, .slab_bytes = 8 * kib});
    } catch (const OutOfMemory&) {
      continue;
    }
    std::vector<std::pair<void*, std::size_t>> live;
    for (const std::size_t bytes : {3 * kib, 6 * kib, 9 * kib, kib}) {
      const std::size_t used = pool->used_bytes();
      try {
        live.emplace_back(pool->allocate(bytes, 4096, stream), bytes);
      } catch (const OutOfMemory& exhausted) {
        CHECK(exhausted.required_bytes() == bytes);
        CHECK(pool->used_bytes() == used);
      }
      pool->check_invariants();
    }
    for (const auto& [memory, bytes] : live) pool->deallocate(memory, bytes, 4096, stream);
    pool->check_invariants();
  }
  CHECK(counted.statistics().live_bytes == 0);
}

TEST_CASE("a pool refuses options that make no sense") {
  HostResource host;
  CHECK_THROWS_AS(PoolResource(host, {.slab_bytes = 0}), InvalidArgument);
  CHECK_THROWS_AS(PoolResource(host, {.slab_bytes = SIZE_MAX}), InvalidArgument);
  CHECK_THROWS_AS(PoolResource(host, {.initial_bytes = SIZE_MAX}), InvalidArgument);
}

#ifndef STATEPORT_ENABLE_ASSERT
TEST_CASE("a pool ignores memory that is not its own where assertions are off") {
  CountedPool counted({.slab_bytes = 4 * kib});
  int foreign = 0;
  counted.give(&foreign, sizeof foreign, Stream::default_stream());
  counted.pool.check_invariants();
}
#endif

// The model is the plain truth: the set of live address ranges. The pool may place them as it likes.
TEST_CASE("random pool operations keep live memory apart, aligned and counted") {
  const std::vector<Stream> streams{Stream::default_stream(), Stream::create(), Stream::create()};
  const auto body = [&](stateport::test::Random& random, std::uint64_t) {
    CountedPool counted({.initial_bytes = static_cast<std::size_t>(random.between(0, 1)) * 64 * kib,
                         .slab_bytes = std::size_t{1} << random.between(9, 17)});
    struct Live {
      Request request;
      std::size_t block_bytes;
    };
    std::map<std::uintptr_t, Live> live;
    std::size_t used = 0;
    for (int step = 0; step < 150; ++step) {
      const Stream& stream = streams[static_cast<std::size_t>(random.between(0, 2))];
      const std::int64_t choice = random.between(0, 99);
      if (choice < 52) {
        const Request request = random_request(random);
        void* const memory = counted.pool.allocate(request.bytes, request.alignment, stream);
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        const std::size_t block_bytes = (request.bytes + 255) / 256 * 256;
        REQUIRE(address % request.alignment == 0);
        const auto above = live.lower_bound(address);
        REQUIRE((above == live.end() || address + block_bytes <= above->first));
        REQUIRE((above == live.begin() || std::prev(above)->first + std::prev(above)->second.block_bytes <= address));
        // The sanitizer sees whether the range lies in memory that upstream gave.
        static_cast<unsigned char*>(memory)[0] = static_cast<unsigned char*>(memory)[request.bytes - 1] = 1;
        live[address] = {request, block_bytes};
        used += block_bytes;
      } else if (choice < 97) {
        if (live.empty()) continue;
        const auto victim = std::next(live.begin(), random.between(0, static_cast<std::int64_t>(live.size()) - 1));
        const Request& request = victim->second.request;
        counted.pool.deallocate(reinterpret_cast<void*>(victim->first), request.bytes, request.alignment, stream);
        used -= victim->second.block_bytes;
        live.erase(victim);
      } else {
        const std::size_t reserved = counted.pool.reserved_bytes();
        const std::size_t released = counted.pool.release_unused(stream);
        REQUIRE(counted.pool.reserved_bytes() == reserved - released);
        if (live.empty()) REQUIRE(counted.pool.reserved_bytes() == 0);
      }
      counted.pool.check_invariants();
      REQUIRE(counted.pool.used_bytes() == used);
      REQUIRE(counted.pool.reserved_bytes() == counted.upstream.statistics().live_bytes);
    }
    for (const auto& [address, entry] : live)
      counted.pool.deallocate(reinterpret_cast<void*>(address), entry.request.bytes, entry.request.alignment,
                              streams[0]);
    REQUIRE(counted.pool.used_bytes() == 0);
    counted.pool.release_unused(streams[1]);
    REQUIRE(counted.upstream.statistics().live_bytes == 0);
  };
  stateport::test::for_each_seed(300, body);
}
