// SPDX-License-Identifier: Apache-2.0
// Which memory of the host a device reaches.
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/internal/device_checks.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <span>

using namespace stateport;

namespace {

/// Copies slot 0, all of its bytes 7, to slot 1 and says whether they arrived.
bool copies_in(MemoryResource& resource) {
  const Stream stream = Stream::create();
  const StateStore store(resource, StateSpec::uniform(1, {}, {.shape = {1, 1, 1000}}), {.slots = 2});
  const std::size_t bytes = store.spec().slot_bytes();
  fill_bytes(stream, store.tensors()[0].slot_data(SlotId{0}), std::byte{7}, bytes);
  fill_bytes(stream, store.tensors()[0].slot_data(SlotId{1}), std::byte{1}, bytes);
  SlotCopier copier(store);
  const SlotCopy copy = SlotCopy::whole(0, 1);
  copier.copy_slots(stream, {&copy, 1});
  stream.synchronize();
  return std::ranges::all_of(std::span(store.tensors()[0].slot_data(SlotId{1}), bytes),
                             [](std::byte byte) { return byte == std::byte{7}; });
}

}  // namespace

TEST_CASE("a store in pinned memory is filled and copied by the device") {
  PinnedResource pinned;
  CHECK(copies_in(pinned));
}

TEST_CASE("a store in pageable memory is copied where the device reads that, and refused elsewhere") {
  HostResource host;
  if (detail::reaches_pageable_memory())
    CHECK(copies_in(host));
  else {
    const StateStore store(host, StateSpec::uniform(1, {}, {.shape = {1, 1, 1000}}), {.slots = 2});
    CHECK_THROWS_WITH_AS(SlotCopier{store}, doctest::Contains("pageable memory"), InvalidArgument);
  }
}
