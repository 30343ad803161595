// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/callback_resource.hpp>
#include <stateport/backends/failing_resource.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/limit_resource.hpp>
#include <stateport/backends/statistics_resource.hpp>
#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <array>
#include <stdexcept>
#include <vector>

using stateport::BackendError;
using stateport::CallbackResource;
using stateport::FailingResource;
using stateport::HostResource;
using stateport::InvalidArgument;
using stateport::LimitResource;
using stateport::MemoryKind;
using stateport::MemoryResource;
using stateport::OutOfMemory;
using stateport::StatisticsResource;
using stateport::Stream;

TEST_CASE("a statistics resource counts bytes, calls and failures") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  FailingResource failing(host);
  StatisticsResource counted(failing);
  void* const first = counted.allocate(100, 64, stream);
  void* const second = counted.allocate(50, 64, stream);
  CHECK(counted.allocate(0, 64, stream) == nullptr);
  counted.deallocate(first, 100, 64, stream);
  failing.fail_at(1);
  CHECK_THROWS_AS(static_cast<void>(counted.allocate(1000, 64, stream)), OutOfMemory);

  auto seen = counted.statistics();
  CHECK(seen.live_bytes == 50);
  CHECK(seen.peak_bytes == 150);
  CHECK(seen.allocations == 2);
  CHECK(seen.deallocations == 1);
  CHECK(seen.failed_calls == 1);
  CHECK(seen.live_allocations() == 1);
  counted.reset_peak();
  CHECK(counted.statistics().peak_bytes == 50);
  counted.deallocate(second, 50, 64, stream);
  CHECK(counted.statistics().live_bytes == 0);
}

TEST_CASE("a limit resource gives its budget to the last byte and no more") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  LimitResource limit(host, 100);
  void* const first = limit.allocate(60, 64, stream);
  try {
    static_cast<void>(limit.allocate(41, 64, stream));
    FAIL("the budget was exceeded");
  } catch (const OutOfMemory& exhausted) {
    CHECK(exhausted.required_bytes() == 41);
    CHECK(exhausted.available_bytes() == 40);
  }
  void* const second = limit.allocate(40, 64, stream);
  CHECK(limit.used_bytes() == 100);
  CHECK_THROWS_AS(static_cast<void>(limit.allocate(1, 1, stream)), OutOfMemory);
  limit.deallocate(first, 60, 64, stream);
  CHECK(limit.used_bytes() == 40);
  limit.deallocate(second, 40, 64, stream);
}

TEST_CASE("a limit resource does not spend its budget on calls that upstream fails") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  FailingResource failing(host);
  LimitResource limit(failing, 100);
  failing.fail_at(1);
  CHECK_THROWS_AS(static_cast<void>(limit.allocate(60, 64, stream)), OutOfMemory);
  CHECK(limit.used_bytes() == 0);
}

TEST_CASE("a failing resource fails the calls it was told to, and no others") {
  const Stream stream = Stream::default_stream();
  HostResource host;
  FailingResource failing(host);
  const auto pattern = [&](int calls) {
    std::vector<bool> failed;
    for (int call = 0; call < calls; ++call) {
      try {
        void* const memory = failing.allocate(8, 8, stream);
        failing.deallocate(memory, 8, 8, stream);
        failed.push_back(false);
      } catch (const OutOfMemory&) {
        failed.push_back(true);
      }
    }
    return failed;
  };
  CHECK(pattern(3) == std::vector{false, false, false});
  failing.fail_at(2);
  CHECK(pattern(4) == std::vector{false, true, false, false});
  CHECK(failing.calls() == 4);
  CHECK(failing.failures() == 1);
  failing.fail_at(1, 2);
  CHECK(pattern(3) == std::vector{true, true, false});
  failing.fail_at(1, UINT64_MAX);
  CHECK(pattern(3) == std::vector{true, true, true});
  failing.fail_never();
  CHECK(pattern(2) == std::vector{false, false});
  CHECK(failing.failures() == 0);
  CHECK_THROWS_AS(failing.fail_at(0), InvalidArgument);
}

namespace {

/// An engine's allocator that hands out one buffer, shifted, and notes what it is asked.
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
