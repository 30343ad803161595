// SPDX-License-Identifier: Apache-2.0
// Calls that cannot be captured are refused; the capture and later calls stay intact.
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("a plan too long for a graph is refused, other captured calls replay, and later plans are copied") {
  constexpr std::int32_t rows = SlotCopier::inline_copies_max + 1;
  const Stream stream = Stream::create();
  test::WordStates states(2 * rows);
  SlotCopier copier(states.store());
  std::vector<SlotCopy> plan;
  for (std::int32_t i = 0; i < rows; ++i) plan.push_back(SlotCopy::whole(i, rows + i));
  const SlotCopy back = SlotCopy::whole(rows, 0);
  for (int i = 0; i < 20; ++i) {  // more often than plans can be staged at once
    const test::DeviceGraph graph(stream, [&] {
      CHECK_THROWS_AS(copier.copy_slots(stream, plan), InvalidArgument);
      copier.copy_slots(stream, {&back, 1});
    });
    graph.launch(stream);
    states.copy(rows, 0);
    copier.copy_slots(stream, plan);
    for (const SlotCopy& copy : plan) states.copy(copy.src_slot, copy.dst_slot);
  }
  CHECK(states.hold_what_they_must(stream));
}

TEST_CASE("a batch staged while its stream captures is refused") {
  const Stream stream = Stream::create();
  AlignContext context({.max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 3}}});
  context.add_request(stream, RequestIndex{0}, 0);
  stream.synchronize();
  const std::vector<StagedRequest> batch = {{.request = RequestIndex{0}, .computed = 0, .scheduled = 1, .prompt = 9}};
  const auto stage = [&] { static_cast<void>(context.stage(stream, batch)); };
  CHECK_THROWS_AS((test::DeviceGraph{stream, stage}), InvalidArgument);
  CHECK(context.stage(stream, batch).rows == 1);
}
