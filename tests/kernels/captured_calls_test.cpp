// SPDX-License-Identifier: Apache-2.0
// A call that cannot be captured into a graph is refused before anything is enqueued, and a launch that the vendor's
// runtime refuses is an error. An OpenMP build has neither: here both are pretended. Graphs themselves need a device.
#include <stateport/backends/device.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "device_array.hpp"
#include "launch.hpp"
#include "launch_recorder.hpp"
#include "pretending.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace stateport;
using test::Pretending;

namespace {

/// Whether these are the launches of GPUs, on whatever they run: those of CPUs read plans where they lie.
bool stages_plans() {
  return kernels::tile_bytes_max < (std::size_t{1} << 20);
}

/// Slots of one number each; slot s holds s.
struct Numbers {
  explicit Numbers(std::int32_t slots) : memory(numbers(slots)), store(StateStore::view({&tensor, 1}, slots)) {}

  static std::vector<float> numbers(std::int32_t slots) {
    std::vector<float> values;
    for (std::int32_t slot = 0; slot < slots; ++slot) values.push_back(static_cast<float>(slot));
    return values;
  }
  [[nodiscard]] std::vector<float> held() const { return test::from_device(memory_data(), count()); }
  [[nodiscard]] const float* memory_data() const { return reinterpret_cast<const float*>(tensor.base); }
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(store.slots()); }

  test::DeviceArray<float> memory;
  StateTensorView tensor{.spec = {.shape = {1, 1, 1}},
                         .base = reinterpret_cast<std::byte*>(memory.data()),
                         .slot_stride_bytes = sizeof(float)};
  StateStore store;
};

/// Copies slot i to slot n + i, for i below n.
std::vector<SlotCopy> upwards(std::int32_t n) {
  std::vector<SlotCopy> plan;
  for (std::int32_t i = 0; i < n; ++i) plan.push_back(SlotCopy::whole(i, n + i));
  return plan;
}

}  // namespace

TEST_CASE("a captured plan travels in the graph, and one that does not fit is refused") {
  const Stream stream = Stream::default_stream();
  Numbers fits(2 * SlotCopier::inline_copies_max);
  Numbers too_long(2 * SlotCopier::inline_copies_max + 2);
  SlotCopier fitting(fits.store);
  SlotCopier refusing(too_long.store);
  const std::vector<float> before = too_long.held();
  const auto long_plan = upwards(SlotCopier::inline_copies_max + 1);
  std::vector<SlotId> slots;
  for (const SlotCopy& copy : long_plan) slots.emplace_back(copy.dst_slot);
  const Pretending capture({.captures = true});
  fitting.copy_slots(stream, upwards(SlotCopier::inline_copies_max));
  CHECK(fits.held()[SlotCopier::inline_copies_max] == 0);
  CHECK(fits.held().back() == SlotCopier::inline_copies_max - 1);
  if (!stages_plans()) return;
  const test::LaunchRecorder recorder;
  CHECK_THROWS_WITH_AS(refusing.copy_slots(stream, long_plan), doctest::Contains("plan = 193"), InvalidArgument);
  CHECK_THROWS_WITH_AS(refusing.clear_slots(stream, slots), doctest::Contains("plan = 193"), InvalidArgument);
  CHECK(recorder.record().launches.empty());
  CHECK(too_long.held() == before);
}

TEST_CASE("a copy of a plan on the device may be captured any number of times") {
  // Each captured launch has a queue of its own, while there are any left.
  constexpr std::int32_t calls = 2100;
  const Stream stream = Stream::default_stream();
  constexpr std::int32_t n = 40;  // more tiles than teams that run at once
  Numbers numbers(3 * n);
  SlotCopier copier(numbers.store);
  test::DeviceArray plan(upwards(n));
  std::vector<SlotCopy> other;
  for (std::int32_t i = 0; i < n; ++i) other.push_back(SlotCopy::whole(2 * n + i, n + i));
  test::DeviceArray restoring(other);
  const Pretending capture({.captures = true});
  for (std::int32_t call = 0; call < calls; ++call) {
    copier.copy_slots_on_device(stream, call % 2 == 0 ? plan.data() : restoring.data(), n);
    if (call % 100 != 0 && call < calls - 10) continue;
    const std::vector<float> held = numbers.held();
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
      REQUIRE(held[static_cast<std::size_t>(n) + i] == static_cast<float>(i + (call % 2 == 0 ? 0 : 2 * n)));
  }
}

TEST_CASE("a refused plan leaves the copier as it was") {
  const Stream stream = Stream::default_stream();
  const std::int32_t n = SlotCopier::inline_copies_max + 1;
  Numbers numbers(2 * n);
  SlotCopier copier(numbers.store);
  if (stages_plans()) {
    const Pretending capture({.captures = true});
    for (int i = 0; i < 20; ++i) CHECK_THROWS_AS(copier.copy_slots(stream, upwards(n)), InvalidArgument);
  }
  copier.copy_slots(stream, upwards(n));
  CHECK(numbers.held()[static_cast<std::size_t>(n)] == 0);
  CHECK(numbers.held().back() == static_cast<float>(n - 1));
}

TEST_CASE("a batch of the host cannot be staged into a graph") {
  const Stream stream = Stream::default_stream();
  AlignContext context({.max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 5}}});
  context.add_request(stream, RequestIndex{1}, 0);
  const std::vector<StagedRequest> batch = {{.request = RequestIndex{1}, .computed = 0, .scheduled = 4, .prompt = 9}};
  {
    const Pretending capture({.captures = true});
    CHECK_THROWS_WITH_AS(static_cast<void>(context.stage(stream, batch)), doctest::Contains("batch = 1"),
                         InvalidArgument);
  }
  CHECK(context.stage(stream, batch).rows == 1);
}

TEST_CASE("a launch that the vendor's runtime refuses throws an error with its label") {
  const Stream stream = Stream::default_stream();
  Numbers numbers(4);
  SlotCopier copier(numbers.store);
  const StepScratch scratch{
      .base = numbers.tensor.base, .request_stride_bytes = sizeof(float), .step_stride_bytes = sizeof(float)};
  StepCommitter committer({&scratch, 1}, numbers.store, 1, 1);
  test::DeviceArray nothing(std::vector<std::int32_t>{-1});
  const auto plan = upwards(2);
  test::DeviceArray device_plan(plan);
  const Pretending refusal({.refuses_launches = true});
  CHECK_THROWS_WITH_AS(
      committer.commit_step(stream, {.last_step = nothing.data(), .live_slot = nothing.data(), .rows = 1}),
      doctest::Contains("stateport::commit_step"), BackendError);
  if (!stages_plans()) return;
  CHECK_THROWS_WITH_AS(copier.copy_slots(stream, plan), doctest::Contains("stateport::copy_slots"), BackendError);
  CHECK_THROWS_WITH_AS(copier.copy_slots_on_device(stream, device_plan.data(), 2),
                       doctest::Contains("stateport::copy_slots_on_device"), BackendError);
}

TEST_CASE("checks are not captured") {
  Numbers numbers(4);
  const StateStore* const store = &numbers.store;
  const Stream stream = Stream::default_stream();
  SlotCopier copier(*store);
  StateIntegrity integrity({&store, 1});
  const StateCheck check{StateCheck::Kind::published, 0, SlotId{1}, 1, RequestId{1}};
  const SlotCopy copy = SlotCopy::whole(2, 1);
  const auto refused = [&](const auto& call) {
    const Pretending capture({.captures = true});
    const test::LaunchRecorder recorder;
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("stream = captures a graph"), InvalidArgument);
    CHECK(recorder.record().launches.empty());
  };
  refused([&] { integrity.begin(stream, {&check, 1}); });
  integrity.begin(stream, {&check, 1});
  refused([&] { integrity.copy_slots(stream, copier, {&copy, 1}); });
  CHECK(numbers.held()[1] == 1);
  integrity.copy_slots(stream, copier, {&copy, 1});
  refused([&] { integrity.end(stream); });
  integrity.end(stream);
  integrity.wait(stream);
  CHECK(integrity.poll().empty());
  CHECK(integrity.checked() == 1);
  CHECK(numbers.held()[1] == 2);
}

TEST_CASE("a launch that is refused is an error of the checks, too") {
  Numbers numbers(4);
  const StateStore* const store = &numbers.store;
  StateIntegrity integrity({&store, 1});
  const StateCheck check{StateCheck::Kind::read, 0, SlotId{1}, 1, RequestId{}};
  const Pretending refusal({.refuses_launches = true});
  CHECK_THROWS_WITH_AS(integrity.begin(Stream::default_stream(), {&check, 1}),
                       doctest::Contains("stateport::sum_slots"), BackendError);
}

TEST_CASE("a new object has launched once, so that its first call may be captured") {
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {.shape = {2, 2, 2}}), {.slots = 8});
  test::DeviceArray table(std::vector<std::int32_t>(8, 0));
  const auto prepared = [](const auto& make) {
    const test::LaunchRecorder recorder;
    make();
    const auto& launches = recorder.record().launches;
    return std::ranges::count(launches, std::string("stateport::prepare"));
  };
  // Copies of few rows and of many: whole ones of aligned stores, with sums and without, and any others. Clearing the
  // same, and the copy of a plan on the device.
  CHECK(prepared([&] { SlotCopier copier(store); }) == (stages_plans() ? 9 : 0));
  const StateStore* const kept = &store;
  CHECK(prepared([&] { StateIntegrity integrity({&kept, 1}); }) == (stages_plans() ? 2 : 1));
  const StepScratch conv = StepScratch::strip(store.tensors()[0].base, store.tensors()[0].spec.type, 4, 8, false);
  const StepScratch recurrent{.base = store.tensors()[1].base, .type = store.tensors()[1].spec.type};
  CHECK(prepared([&] { StepCommitter committer(std::vector{conv, recurrent}, store, 1, 1); }) == 1);
  AlignContext context({.max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 8, .conv_window = 4}}});
  CHECK(prepared([&] {
          context.bind(std::vector<AlignBinding>{{&store, table.data(), 8, 8}});
        }) == (stages_plans() ? 1 : 0));
}
