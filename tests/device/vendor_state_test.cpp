// SPDX-License-Identifier: Apache-2.0
#include "vendor_state.hpp"

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "word_states.hpp"

#include <doctest/doctest.h>

#include <cstddef>

using namespace stateport;

TEST_CASE("asking for an event that has not come leaves no error for others to find") {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const Stream stream = Stream::create();
  DeviceResource memory;
  const Buffer from(memory, bytes);
  Buffer to(memory, bytes);
  Event event;
  bool waited = false;
  for (int attempt = 0; attempt < 10 && !waited; ++attempt) {
    for (int copy = 0; copy < 100; ++copy) copy_bytes(stream, to.data(), from.data(), bytes);
    event.record(stream);
    waited = !event.query();
    CHECK(test::pending_error() == 0);
  }
  CHECK(waited);
  stream.synchronize();
  CHECK(event.query());
}

TEST_CASE("a call leaves the caller's device current") {
  if (test::device_count() < 2) {
    MESSAGE("skipped: there is one device");
    return;
  }
  const Stream stream = Stream::create();
  test::WordStates states(4);
  SlotCopier copier(states.store());
  const SlotCopy copy = SlotCopy::whole(0, 1);
  const int own = test::current_device();
  const int other = (own + 1) % test::device_count();
  test::make_current(other);
  copier.copy_slots(stream, {&copy, 1});
  CHECK(test::current_device() == other);
  CHECK(test::pending_error() == 0);
  test::make_current(own);
  states.copy(0, 1);
  CHECK(states.hold_what_they_must(stream));
}
