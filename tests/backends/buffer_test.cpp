// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "failing_resource.hpp"
#include "statistics_resource.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

using stateport::Buffer;
using stateport::DeviceResource;
using stateport::InvalidArgument;
using stateport::OutOfMemory;
using stateport::Stream;
using stateport::test::FailingResource;
using stateport::test::StatisticsResource;

namespace {

/// Memory of the device that notes on which stream it is given back.
class NotingResource final : public stateport::MemoryResource {
 public:
  std::vector<Stream> given_back;

 protected:
  [[nodiscard]] void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override {
    return device_.allocate(bytes, alignment, stream);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override {
    given_back.push_back(stream);
    device_.deallocate(memory, bytes, alignment, stream);
  }
  [[nodiscard]] stateport::MemoryKind do_kind() const noexcept override { return device_.kind(); }

 private:
  DeviceResource device_;
};

}  // namespace

static_assert(!std::is_copy_constructible_v<Buffer> && std::is_nothrow_move_constructible_v<Buffer>);

TEST_CASE("a buffer owns its memory until it is reset, moved over or destroyed") {
  DeviceResource device;
  StatisticsResource counted(device);
  {
    Buffer buffer(counted, 1000);
    CHECK(buffer.size_bytes() == 1000);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256 == 0);
    CHECK(buffer.as<int>() == buffer.data());
    CHECK(counted.statistics().live_bytes == 1000);

    void* const memory = buffer.data();
    Buffer moved(std::move(buffer));
    CHECK(moved.data() == memory);
    CHECK(counted.statistics().live_bytes == 1000);

    Buffer other(counted, 24, 4096, Stream::create());
    other = std::move(moved);
    CHECK(other.data() == memory);
    CHECK(counted.statistics().live_bytes == 1000);

    other.set_stream(Stream::default_stream());
    other.reset();
    CHECK(other.empty());
    CHECK(other.data() == nullptr);
    other.reset();
    other = Buffer(counted, 8);
  }
  CHECK(counted.statistics().live_bytes == 0);
  CHECK(counted.statistics().allocations == counted.statistics().deallocations);
}

TEST_CASE("a buffer gives its memory back on its own stream, wherever it was moved") {
  NotingResource noting;
  const std::vector<Stream> streams = {Stream::create(), Stream::create()};
  {
    Buffer first(noting, 8, 256, streams[0]);
    Buffer second(noting, 8, 256, streams[1]);
    second = std::move(first);
    CHECK(noting.given_back == std::vector{streams[1]});
  }
  CHECK(noting.given_back == std::vector{streams[1], streams[0]});
}

TEST_CASE("a moved-from and a default buffer are empty") {
  DeviceResource device;
  Buffer empty;
  CHECK(empty.data() == nullptr);
  Buffer buffer(device, 10);
  const Buffer taken = std::move(buffer);
  CHECK(buffer.empty());  // NOLINT(bugprone-use-after-move): the contract
  CHECK(taken.size_bytes() == 10);
}

TEST_CASE("a buffer of zero bytes holds no memory") {
  DeviceResource device;
  const Buffer buffer(device, 0);
  CHECK(buffer.empty());
  CHECK(buffer.data() == nullptr);
}

TEST_CASE("a buffer that cannot be made throws the error of its resource") {
  DeviceResource device;
  FailingResource failing(device);
  failing.fail_at(1);
  CHECK_THROWS_AS(Buffer(failing, 10), OutOfMemory);
  CHECK_THROWS_AS(Buffer(failing, 10, 3), InvalidArgument);
}
