// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/transfer.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "memory_fixtures.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

using stateport::Buffer;
using stateport::copy_bytes;
using stateport::fill_bytes;
using stateport::InvalidArgument;
using stateport::Stream;

TEST_CASE("copy_bytes moves bytes between any two kinds of memory and touches no others") {
  stateport::HostResource host;
  stateport::DeviceResource device;
  stateport::PinnedResource pinned;
  std::vector<stateport::MemoryResource*> kinds{&host, &device, &pinned};
  const Stream stream = Stream::create();
  for (stateport::MemoryResource* from : kinds) {
    for (stateport::MemoryResource* to : kinds) {
      for (const std::size_t bytes : {1U, 7U, 256U, 4097U, 1'000'003U}) {
        constexpr std::size_t guard = 64;
        Buffer src(*from, bytes, 256, stream);
        Buffer dst(*to, bytes + 2 * guard, 256, stream);
        stateport::test::paint(from->kind(), src.data(), bytes, 0x5A, stream);
        stateport::test::paint(to->kind(), dst.data(), dst.size_bytes(), 0xE7, stream);
        stream.synchronize();
        copy_bytes(stream, dst.as<std::byte>() + guard, src.data(), bytes);
        stream.synchronize();
        CHECK(stateport::test::painted(dst.data(), guard, 0xE7, stream));
        CHECK(stateport::test::painted(dst.as<std::byte>() + guard, bytes, 0x5A, stream));
        CHECK(stateport::test::painted(dst.as<std::byte>() + guard + bytes, guard, 0xE7, stream));
      }
    }
  }
}

TEST_CASE("work on two streams runs in the order of an event") {
  stateport::DeviceResource device;
  const Stream producer = Stream::create();
  const Stream consumer = Stream::create();
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const Buffer middle(device, bytes);
  Buffer end(device, bytes);
  for (int round = 1; round <= 20; ++round) {
    const auto value = static_cast<unsigned char>(round);
    fill_bytes(producer, const_cast<void*>(middle.data()), std::byte{value}, bytes);
    order(producer, consumer);
    copy_bytes(consumer, end.data(), middle.data(), bytes);
    order(consumer, producer);
    CHECK(stateport::test::painted(end.data(), bytes, value, consumer));
  }
}

TEST_CASE("copy_bytes and fill_bytes refuse arguments that no runtime should see, and do nothing for zero bytes") {
  std::vector<std::byte> memory(100, std::byte{1});
  const Stream stream = Stream::default_stream();
  copy_bytes(stream, nullptr, nullptr, 0);
  fill_bytes(stream, nullptr, std::byte{0}, 0);
  copy_bytes(stream, memory.data(), memory.data(), 100);
  CHECK_THROWS_AS(copy_bytes(stream, nullptr, memory.data(), 1), InvalidArgument);
  CHECK_THROWS_AS(copy_bytes(stream, memory.data(), nullptr, 1), InvalidArgument);
  CHECK_THROWS_AS(copy_bytes(stream, nullptr, nullptr, 1), InvalidArgument);
  CHECK_THROWS_AS(copy_bytes(stream, memory.data() + 10, memory.data(), 11), InvalidArgument);
  CHECK_THROWS_AS(copy_bytes(stream, memory.data(), memory.data() + 10, 11), InvalidArgument);
  CHECK_THROWS_AS(fill_bytes(stream, nullptr, std::byte{0}, 1), InvalidArgument);
  copy_bytes(stream, memory.data() + 10, memory.data(), 10);
  CHECK(memory == std::vector<std::byte>(100, std::byte{1}));
}
