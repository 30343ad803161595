// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/runtime.hpp>

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

using stateport::InvalidArgument;
using stateport::Runtime;

// main has made a Runtime. Programs of their own test the time before the first Runtime and after the last.

TEST_CASE("a program may make Runtimes in any order and from any thread") {
  std::optional<Runtime> first(Runtime::Options{.device_id = 0});
  std::optional<Runtime> second(std::in_place);
  CHECK(first->device().id == second->device().id);
  first.reset();
  CHECK(Runtime::is_running());
  second.reset();
  CHECK(Runtime::is_running());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 50; ++round) {
        const Runtime runtime;
        stateport::Stream::default_stream().synchronize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(Runtime::is_running());
}

TEST_CASE("a Runtime refuses a device that is not in use, and options that make no sense") {
  const auto present = static_cast<int>(stateport::devices().size());
  CHECK_THROWS_AS(Runtime({.device_id = present}), InvalidArgument);
  CHECK_THROWS_AS(Runtime({.device_id = -2}), InvalidArgument);
  CHECK_THROWS_AS(Runtime({.host_threads = -1}), InvalidArgument);
}

TEST_CASE("a Runtime cannot be finalized under another") {
  CHECK_THROWS_AS(Runtime::finalize(), stateport::InvalidState);
  CHECK(Runtime::is_running());
}

TEST_CASE("devices are described by id") {
  const std::vector<stateport::DeviceInfo> devices = stateport::devices();
  REQUIRE_FALSE(devices.empty());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CHECK(devices[i].id == static_cast<int>(i));
    CHECK_FALSE(devices[i].name.empty());
    CHECK_FALSE(devices[i].architecture.empty());
    CHECK(devices[i].memory_bytes > 0);
    CHECK(devices[i].compute_units > 0);
  }
  CHECK(Runtime().device().name == devices[static_cast<std::size_t>(Runtime().device().id)].name);
  CHECK_FALSE(stateport::backend_info().kokkos_version.empty());
}
