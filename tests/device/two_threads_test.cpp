// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_graph.hpp"
#include "word_states.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using namespace stateport;

namespace {

std::vector<SlotCopy> upwards(std::int32_t first, std::int32_t rows) {
  std::vector<SlotCopy> plan;
  for (std::int32_t i = 0; i < rows; ++i) plan.push_back(SlotCopy::whole(first + i, first + rows + i));
  return plan;
}

}  // namespace

TEST_CASE("threads with a copier and a stream each copy in one store at a time, plans of every way to travel") {
  const Stream check = Stream::create();
  for (const std::int32_t rows : {1, 17, 300}) {
    CAPTURE(rows);
    test::WordStates states(4 * rows);
    std::vector<std::thread> threads;
    for (const std::int32_t first : {0, 2 * rows})
      threads.emplace_back([&states, first, rows] {
        const Stream stream = Stream::create();
        SlotCopier copier(states.store());
        for (int i = 0; i < 200; ++i) copier.copy_slots(stream, upwards(first, rows));
        stream.synchronize();
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::int32_t first : {0, 2 * rows})
      for (const SlotCopy& copy : upwards(first, rows)) states.copy(copy.src_slot, copy.dst_slot);
    CHECK(states.hold_what_they_must(check));
  }
}

TEST_CASE("a thread may capture while another one allocates") {
  const Stream stream = Stream::create();
  test::WordStates states(2);
  SlotCopier copier(states.store());
  const SlotCopy copy = SlotCopy::whole(0, 1);
  std::atomic<bool> stop = false;
  std::thread allocating([&] {
    DeviceResource resource;
    const Stream other = Stream::create();
    while (!stop) Buffer(resource, 4096, 256, other).reset();
  });
  for (int i = 0; i < 50; ++i) {
    const test::DeviceGraph graph(stream, [&] { copier.copy_slots(stream, {&copy, 1}); });
    graph.launch(stream);
  }
  stop = true;
  allocating.join();
  states.copy(0, 1);
  CHECK(states.hold_what_they_must(stream));
}
