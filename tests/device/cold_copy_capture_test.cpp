// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

using namespace stateport;

TEST_CASE("the first copy of a process may be captured, while no thread may do anything else") {
  const Stream stream = Stream::create();
  test::WordStates states(4);
  SlotCopier copier(states.store());
  const SlotCopy copy = SlotCopy::whole(0, 1);
  const test::DeviceGraph graph(
      stream,
      [&] {
        copier.copy_slots(stream, {&copy, 1});
      },
      test::CaptureMode::all_calls);
  CHECK(states.hold_what_they_must(stream));  // capturing copies nothing
  graph.launch(stream);
  states.copy(0, 1);
  CHECK(states.hold_what_they_must(stream));
}
