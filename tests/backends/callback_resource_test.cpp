// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/callback_resource.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <array>
#include <stdexcept>
#include <vector>

using stateport::BackendError;
using stateport::CallbackResource;
using stateport::InvalidArgument;
using stateport::MemoryKind;
using stateport::MemoryResource;
using stateport::OutOfMemory;
using stateport::Stream;

namespace {

/// An engine's allocator that hands out one buffer, shifted, and records its calls.
struct Engine {
  alignas(4096) std::array<std::byte, 8192> memory{};
  std::size_t shift = 0;
  bool exhausted = false;
  bool throws = false;
  int live = 0;
  void* seen_stream = nullptr;

  static void* allocate(std::size_t, std::size_t, void* native_stream, void* context) {
    Engine& engine = *static_cast<Engine*>(context);
    engine.seen_stream = native_stream;
    if (engine.throws) throw std::runtime_error("engine");
    if (engine.exhausted) return nullptr;
    ++engine.live;
    return engine.memory.data() + engine.shift;
  }
  static void deallocate(void*, std::size_t, std::size_t, void*, void* context) {
    --static_cast<Engine*>(context)->live;
  }
  [[nodiscard]] CallbackResource::Callbacks callbacks() {
    return {.allocate = allocate, .deallocate = deallocate, .context = this, .kind = MemoryKind::pinned_host};
  }
};

}  // namespace

TEST_CASE("a callback resource hands calls to the engine with its stream and context") {
  const Stream stream = Stream::create();
  Engine engine;
  CallbackResource resource(engine.callbacks());
  CHECK(resource.kind() == MemoryKind::pinned_host);
  void* const memory = resource.allocate(100, 4096, stream);
  CHECK(memory == engine.memory.data());
  CHECK(engine.live == 1);
  CHECK(engine.seen_stream == stream.native());
  resource.deallocate(memory, 100, 4096, stream);
  CHECK(engine.live == 0);
}

TEST_CASE("a callback resource turns an engine's refusals into errors and keeps nothing") {
  const Stream stream = Stream::default_stream();
  Engine engine;
  CallbackResource resource(engine.callbacks());
  engine.shift = 64;
  CHECK_THROWS_AS(static_cast<void>(resource.allocate(100, 128, stream)), BackendError);
  CHECK(engine.live == 0);
  engine.exhausted = true;
  CHECK_THROWS_AS(static_cast<void>(resource.allocate(100, 64, stream)), OutOfMemory);
  engine.throws = true;
  CHECK_THROWS_AS(static_cast<void>(resource.allocate(100, 64, stream)), std::runtime_error);
  CHECK(engine.live == 0);
  CHECK_THROWS_AS(CallbackResource({.allocate = Engine::allocate}), InvalidArgument);
  CHECK_THROWS_AS(CallbackResource({.deallocate = Engine::deallocate}), InvalidArgument);
}
