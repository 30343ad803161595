// SPDX-License-Identifier: Apache-2.0
// One launch per call, no fence and no allocation: so that the kernels are safe to capture and cheap to call.
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "device_array.hpp"
#include "heap_counter.hpp"
#include "launch_recorder.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

using namespace stateport;

namespace {

/// Runs `call` twice and looks at the second time: the first one warms up.
void check_one_launch(const std::string& label, const std::function<void()>& call) {
  CAPTURE(label);
  call();
  const test::LaunchRecorder recorder;
  call();
  CHECK(recorder.record().launches == std::vector{label});
  CHECK(recorder.record().fences == 0);
  CHECK(recorder.record().allocations == 0);
}

}  // namespace

TEST_CASE("every slot kernel is one launch without fence or allocation, however many copies it carries") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(3, {.window = 3, .dim = 64}, {.shape = {4, 8, 8}});
  const StateStore live(resource, spec, {.slots = 300});
  const StateStore scratch(resource, spec, {.slots = 300});
  const StateStore slots(resource, spec, {.slots = 600});
  for (const std::int32_t count : {1, 16, 17, 192, 193, 300}) {
    std::vector<SlotCopy> low;
    std::vector<SlotCopy> high;
    std::vector<SlotId> ids;
    for (std::int32_t i = 0; i < count; ++i) {
      low.push_back(SlotCopy::whole(i, i));
      high.push_back(SlotCopy::whole(i, 300 + i));
      ids.emplace_back(i);
    }
    SlotCopier copier(live, slots);
    check_one_launch("stateport::copy_slots", [&] { copier.copy_slots(stream, low); });
    check_one_launch("stateport::copy_shifted", [&] { copier.copy_shifted(stream, low); });
    test::DeviceArray plan(low);
    check_one_launch("stateport::copy_slots_on_device",
                     [&] { copier.copy_slots_on_device(stream, plan.data(), count); });
    check_one_launch("stateport::clear_slots", [&] { copier.clear_slots(stream, ids); });
    SlotCopier committer(scratch, live, slots);
    check_one_launch("stateport::commit_scratch", [&] { committer.commit_scratch(stream, low, high); });
  }
}

TEST_CASE("a copier has the memory for long plans from the start") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {}, {.shape = {2, 2, 2}}), {.slots = 1024});
  std::vector<SlotCopy> plan;
  for (std::int32_t i = 0; i < 512; ++i) plan.push_back(SlotCopy::whole(i, 512 + i));
  SlotCopier(store).copy_slots(stream, plan);  // Kokkos makes its one-time allocations
  SlotCopier copier(store);
  const std::uint64_t before = test::heap_allocations();
  const std::uint64_t memory_before = test::memory_allocations();
  constexpr std::uint64_t calls = 20;
  for (std::uint64_t i = 0; i < calls; ++i) copier.copy_slots(stream, plan);
  CHECK(test::heap_allocations() - before <= calls);  // Kokkos makes a string of each launch's label
  CHECK(test::memory_allocations() == memory_before);
}

TEST_CASE("a plan without work launches nothing") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {}, {.shape = {4, 8, 8}}), {.slots = 4});
  const SlotCopy one = SlotCopy::whole(0, 1);
  const std::vector<SlotCopy> nothing = {SlotCopy::whole(-1, 0), SlotCopy::whole(1, -1), SlotCopy::whole(2, 2)};
  SlotCopier copier(store);
  const test::LaunchRecorder recorder;
  copier.copy_slots(stream, nothing);
  copier.copy_slots(stream, {});
  copier.copy_slots(stream, {&one, 1}, {.begin = 1, .end = 1});
  copier.clear_slots(stream, {});
  CHECK(recorder.record().launches.empty());
}
