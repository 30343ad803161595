// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>

#include <stateport/backends/device.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

using stateport::Event;
using stateport::InvalidArgument;
using stateport::Stream;

namespace {
[[nodiscard]] bool is_openmp() {
  return stateport::backend_info().name == "OpenMP";
}
}  // namespace

TEST_CASE("all Streams that name one native stream are equal and share one execution space") {
  const Stream stream = Stream::create();
  const Stream copy = stream;  // NOLINT(performance-unnecessary-copy-initialization): the test needs the copy
  CHECK(copy == stream);
  CHECK(&copy.state() == &stream.state());
  CHECK_FALSE(stream == Stream::create());
  CHECK(Stream::default_stream() == Stream::default_stream());
  CHECK(Stream::from_native(Stream::default_stream().native()) == Stream::default_stream());
  CHECK(Stream::from_native(nullptr) == Stream::from_native(nullptr));
  if (!is_openmp()) CHECK(Stream::from_native(stream.native()) == stream);
}

TEST_CASE("a Stream still names a stream after it was moved from") {
  Stream stream = Stream::create();
  const Stream moved = std::move(stream);
  CHECK(stream == moved);  // NOLINT(bugprone-use-after-move): the contract
  stream.synchronize();
}

TEST_CASE("naming a known stream allocates nothing") {
  const Stream known = Stream::from_native(nullptr);
  const std::uint64_t before = stateport::test::heap_allocations();
  for (int i = 0; i < 100; ++i) {
    const Stream again = Stream::from_native(nullptr);
    const Stream copy = again;  // NOLINT(performance-unnecessary-copy-initialization): the test needs the copy
    if (!(copy == known)) FAIL("another stream");
  }
  CHECK(stateport::test::heap_allocations() == before);
}

TEST_CASE("an OpenMP build has no native streams but nullptr") {
  if (!is_openmp()) return;
  int not_a_stream = 0;
  CHECK_THROWS_AS(static_cast<void>(Stream::from_native(&not_a_stream)), InvalidArgument);
  CHECK(Stream::create().native() == nullptr);
}

TEST_CASE("a forgotten native stream stays usable by those who name it") {
  const Stream named = Stream::from_native(nullptr);
  Stream::forget_native(nullptr);
  named.synchronize();
  int never_seen = 0;
  Stream::forget_native(&never_seen);
  Stream::from_native(nullptr).synchronize();
  // The default stream is the runtime's own: it cannot be forgotten.
  const Stream standard = Stream::default_stream();
  Stream::forget_native(standard.native());
  CHECK(Stream::default_stream() == standard);
  CHECK(Stream::from_native(standard.native()) == standard);
}

TEST_CASE("streams may be made, named and dropped by several threads at once") {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 100; ++round) {
        const Stream own = Stream::create();
        const Stream shared = Stream::from_native(nullptr);
        own.synchronize();
        shared.synchronize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(Stream::create() == Stream::default_stream());
}

TEST_CASE("an event is reached before it is recorded, and after its stream has done its work") {
  const Stream producer = Stream::create();
  const Stream consumer = Stream::create();
  Event event;
  CHECK(event.query());
  event.synchronize();
  event.record(producer);
  event.wait(consumer);
  event.synchronize();
  CHECK(event.query());
  event.record(consumer);
  consumer.synchronize();
  CHECK(event.query());
  order(producer, consumer);
  order(producer, producer);
  consumer.synchronize();
}

TEST_CASE("an event can be moved") {
  Event event;
  event.record(Stream::default_stream());
  Event moved(std::move(event));
  moved.synchronize();
  event = Event();
  event.record(Stream::default_stream());
  event.synchronize();
  CHECK(moved.query());
}
