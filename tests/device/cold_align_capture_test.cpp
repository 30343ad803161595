// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/align_context.hpp>

#include "device_array.hpp"
#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("the first align step of a process may be captured, while no thread may do anything else") {
  const Stream stream = Stream::create();
  test::WordStates states(3);
  AlignContext context({.max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 3}}});
  test::DeviceArray table(std::vector<std::int32_t>{1, 2}), request(std::vector<std::int32_t>{0});
  test::DeviceArray computed(std::vector<std::int32_t>{4}), scheduled(std::vector<std::int32_t>{1});
  const AlignBinding binding{.states = &states.store(), .block_table = table.data(), .row_stride = 2, .columns = 2};
  context.bind({&binding, 1});
  context.add_request(stream, RequestIndex{0}, 4);
  stream.synchronize();
  const test::DeviceGraph graph(
      stream,
      [&] {
        context.pre_step(
            stream, {.request = request.data(), .computed = computed.data(), .scheduled = scheduled.data(), .rows = 1});
      },
      test::CaptureMode::all_calls);
  CHECK(states.hold_what_they_must(stream));
  graph.launch(stream);
  states.copy(1, 2);
  CHECK(states.hold_what_they_must(stream));
}
