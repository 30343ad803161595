// SPDX-License-Identifier: Apache-2.0
// A graph is captured once and replayed after every table changed: each replay follows the current tables and moves
// nothing else. In an OpenMP build a replay is a call to which the stream pretends to capture (device_graph.hpp).
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "device_array.hpp"
#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

using namespace stateport;

using test::WordStates;

namespace {

constexpr int replays = 1000;

/// Copies from one half of the slots to the other, which half from changes; a third of the rows has no work.
std::vector<SlotCopy> random_plan(std::mt19937_64& random, std::int32_t rows) {
  std::vector<std::int32_t> destinations(static_cast<std::size_t>(rows));
  std::iota(destinations.begin(), destinations.end(), 0);
  std::ranges::shuffle(destinations, random);
  const std::int32_t from = random() % 2 == 0 ? 0 : rows, to = rows - from;
  std::vector<SlotCopy> plan;
  for (const std::int32_t destination : destinations) {
    const auto source = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(rows));
    plan.push_back(random() % 3 == 0 ? SlotCopy{} : SlotCopy::whole(from + source, to + destination));
  }
  return plan;
}

void apply(const std::vector<SlotCopy>& plan, WordStates& states) {
  for (const SlotCopy& copy : plan)
    if (copy.dst_slot >= 0) states.copy(copy.src_slot, copy.dst_slot);
}

}  // namespace

TEST_CASE("each of 1,000 replays follows the plan that is in device memory then") {
  for (const bool warm : {false, true})
    for (const std::int32_t rows : {1, 16, 17, 300}) {
      CAPTURE(warm);
      CAPTURE(rows);
      std::mt19937_64 random(static_cast<std::uint64_t>(rows));
      const Stream stream = Stream::create();
      WordStates states(2 * rows);
      SlotCopier copier(states.store());
      test::DeviceArray plan(std::vector<SlotCopy>(static_cast<std::size_t>(rows)));
      const auto step = [&] { copier.copy_slots_on_device(stream, plan.data(), rows); };
      if (warm) step();
      const test::DeviceGraph graph(stream, step);
      int wrong = 0;
      for (int i = 0; i < replays; ++i) {
        const std::vector<SlotCopy> now = random_plan(random, rows);
        apply(now, states);
        copy_bytes(stream, plan.data(), now.data(), now.size() * sizeof(SlotCopy));
        graph.launch(stream);
        wrong += states.hold_what_they_must(stream) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("a captured plan of the host is the graph's: calls between its replays do not change it") {
  for (const std::int32_t rows : {1, 16, 17, SlotCopier::inline_copies_max}) {
    CAPTURE(rows);
    std::mt19937_64 random(static_cast<std::uint64_t>(rows));
    const Stream stream = Stream::create();
    WordStates states(2 * rows);
    SlotCopier copier(states.store());
    const std::vector<SlotCopy> captured = random_plan(random, rows);
    const test::DeviceGraph graph(stream, [&] { copier.copy_slots(stream, captured); });
    int wrong = 0;
    for (int i = 0; i < replays / 10; ++i) {
      const std::vector<SlotCopy> other = random_plan(random, rows);
      apply(other, states);
      copier.copy_slots(stream, other);
      apply(captured, states);
      graph.launch(stream);
      wrong += states.hold_what_they_must(stream) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("each of 1,000 replays of an align step moves states by the block tables of then") {
  constexpr std::int32_t block_tokens = 4;
  for (const bool warm : {false, true})
    for (const std::int32_t rows : {1, 16, 17, 300}) {
      CAPTURE(warm);
      CAPTURE(rows);
      std::mt19937_64 random(static_cast<std::uint64_t>(rows));
      const Stream stream = Stream::create();
      WordStates states(1 + 2 * rows);
      AlignContext context(
          {.max_requests = rows, .groups = {{.block_size_tokens = block_tokens, .blocks = 1 + 2 * rows}}});
      const auto count = static_cast<std::size_t>(rows);
      std::vector<std::int32_t> ids(count), blocks(2 * count);
      std::iota(ids.begin(), ids.end(), 0);
      std::iota(blocks.begin(), blocks.end(), 1);
      test::DeviceArray table(blocks), request(ids), scheduled(std::vector<std::int32_t>(count, 1));
      test::DeviceArray computed(std::vector<std::int32_t>(count, block_tokens));
      const AlignBinding binding{.states = &states.store(), .block_table = table.data(), .row_stride = 2, .columns = 2};
      context.bind({&binding, 1});
      const auto step = [&] {
        context.pre_step(
            stream,
            {.request = request.data(), .computed = computed.data(), .scheduled = scheduled.data(), .rows = rows});
      };
      if (warm) {  // requests that do not exist are skipped: nothing moves
        const std::vector<std::int32_t> nobody(count, -1);
        copy_bytes(stream, request.data(), nobody.data(), count * sizeof(std::int32_t));
        step();
        copy_bytes(stream, request.data(), ids.data(), count * sizeof(std::int32_t));
        stream.synchronize();
      }
      const test::DeviceGraph graph(stream, step);
      int wrong = 0;
      for (int i = 0; i < replays; ++i) {
        std::ranges::shuffle(blocks, random);
        copy_bytes(stream, table.data(), blocks.data(), blocks.size() * sizeof(std::int32_t));
        // Those that the context has just met stand at the end of their first block, and enter the second one.
        const auto entering = static_cast<std::int32_t>(random() % count);
        context.add_request(stream, RequestIndex{entering}, block_tokens);
        if (i == 0)
          for (const std::int32_t id : ids) context.add_request(stream, RequestIndex{id}, block_tokens);
        for (std::size_t row = 0; row < count; ++row)
          if (i == 0 || ids[row] == entering) states.copy(blocks[2 * row], blocks[2 * row + 1]);
        graph.launch(stream);
        wrong += states.hold_what_they_must(stream) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
}
