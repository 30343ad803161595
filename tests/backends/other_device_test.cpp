// SPDX-License-Identifier: Apache-2.0
// Objects of another device than the one in use are refused where they are named first. An OpenMP build has one device:
// the others are pretended.
#include <stateport/backends/callback_resource.hpp>
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/error.hpp>

#include "pretending.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>

using namespace stateport;
using detail::MemoryPlace;
using test::Pretending;

namespace {

/// An engine's allocator with one piece of memory.
struct OtherEngine {
  alignas(256) std::array<std::byte, 256> memory;
  int live = 0;

  [[nodiscard]] CallbackResource::Callbacks callbacks(MemoryKind kind) {
    return {.allocate = [](std::size_t, std::size_t, void*, void* context) -> void* {
              auto& engine = *static_cast<OtherEngine*>(context);
              ++engine.live;
              return engine.memory.data();
            },
            .deallocate = [](void*, std::size_t, std::size_t, void*,
                             void* context) { --static_cast<OtherEngine*>(context)->live; },
            .context = this,
            .kind = kind};
  }
};

}  // namespace

TEST_CASE("a stream of another device is refused, and both devices are named") {
  const Stream known = Stream::from_native(nullptr);
  int native = 0;
  const Pretending other({.stream_device = 3});
  CHECK_THROWS_WITH_AS(static_cast<void>(Stream::from_native(&native)),
                       doctest::Contains("a stream of device 3, and device 0 is in use"), InvalidArgument);
  CHECK(Stream::from_native(nullptr) == known);  // checked when it was seen first
}

TEST_CASE("device memory of an engine's allocator on another device is given back and refused") {
  const Stream stream = Stream::default_stream();
  OtherEngine engine;
  CallbackResource device(engine.callbacks(MemoryKind::device));
  CallbackResource pinned(engine.callbacks(MemoryKind::pinned_host));
  {
    const Pretending other({.memory = {.kind = MemoryPlace::Kind::device, .device_id = 1}});
    CHECK_THROWS_WITH_AS(static_cast<void>(device.allocate(100, 256, stream)),
                         doctest::Contains("memory of device 1, and device 0 is in use"), InvalidArgument);
    CHECK(engine.live == 0);
    pinned.deallocate(pinned.allocate(100, 256, stream), 100, 256, stream);
  }
  const Pretending same({.memory = {.kind = MemoryPlace::Kind::device, .device_id = 0}});
  device.deallocate(device.allocate(100, 256, stream), 100, 256, stream);
  CHECK(engine.live == 0);
}

TEST_CASE("pinned memory is reachable, and pageable memory is not where the device cannot read it") {
  const int memory = 0;
  using Kind = MemoryPlace::Kind;
  for (const Kind kind : {Kind::anywhere, Kind::pageable_host}) {
    const Pretending place({.memory = {.kind = kind}});
    CHECK_NOTHROW(detail::require_device_in_use(&memory, "memory"));
    if (kind == Kind::anywhere)
      CHECK_NOTHROW(detail::require_reachable(&memory, "memory"));
    else
      CHECK_THROWS_WITH_AS(detail::require_reachable(&memory, "memory"), doctest::Contains("pageable memory"),
                           InvalidArgument);
  }
}

TEST_CASE("addresses of an elastic resource are memory of its device, mapped or not, and nobody else's") {
  const Stream stream = Stream::default_stream();
  std::byte* memory = nullptr;
  const Pretending pageable({.memory = {.kind = MemoryPlace::Kind::pageable_host}});
  {
    stateport::ElasticResource resource({.limit_bytes = 1 << 20});
    const std::size_t bytes = 2 * resource.granularity();
    memory = static_cast<std::byte*>(resource.allocate(bytes, 256, stream));
    for (const std::byte* address : {memory, memory + bytes - 1}) {
      CHECK(detail::place_of(address).kind == MemoryPlace::Kind::device);
      CHECK(detail::place_of(address).device_id == 0);
      CHECK_NOTHROW(detail::require_reachable(address, "memory"));
    }
    CHECK(detail::place_of(memory + bytes).kind == MemoryPlace::Kind::pageable_host);
    CHECK(detail::place_of(memory - 1).kind == MemoryPlace::Kind::pageable_host);
    resource.deallocate(memory, bytes, 256, stream);
  }
  CHECK(detail::place_of(memory).kind == MemoryPlace::Kind::pageable_host);
}
