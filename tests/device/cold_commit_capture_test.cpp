// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "device_array.hpp"
#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("the first commit of a process may be captured, while no thread may do anything else") {
  const Stream stream = Stream::create();
  test::WordStates scratch(2), live(2);
  const std::int64_t state_bytes = scratch.store().tensors()[0].slot_stride_bytes;
  const StepScratch steps{.base = scratch.store().tensors()[0].base,
                          .request_stride_bytes = 2 * state_bytes,
                          .step_stride_bytes = state_bytes};
  StepCommitter committer({&steps, 1}, live.store(), 1, 2);
  test::DeviceArray step(std::vector<std::int32_t>{0}), slot(std::vector<std::int32_t>{1});
  const test::DeviceGraph graph(
      stream, [&] { committer.commit_step(stream, {.last_step = step.data(), .live_slot = slot.data(), .rows = 1}); },
      test::CaptureMode::all_calls);
  CHECK(live.hold_what_they_must(stream));
  graph.launch(stream);
  live.copy(0, 1);  // both stores were filled with the same words
  CHECK(live.hold_what_they_must(stream));
}
