// SPDX-License-Identifier: Apache-2.0
// Kernels that would read memory of another device are refused when they are made, before anything is enqueued. An
// OpenMP build has one device: the other is pretended.
#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "device_array.hpp"
#include "launch_recorder.hpp"
#include "pretending.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("stores, scratch and block tables of another device are refused before anything is enqueued") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {}, {.shape = {2, 2, 2}}), {.slots = 8});
  const StateStore other(resource, StateSpec::uniform(1, {}, {.shape = {2, 2, 2}}), {.slots = 8});
  const StepScratch scratch{.base = store.tensors()[0].base, .request_stride_bytes = 32, .step_stride_bytes = 32};
  test::DeviceArray table(std::vector<std::int32_t>(8, 0)), nobody(std::vector<std::int32_t>{-1});
  AlignContext context({.max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 8}}});
  const AlignBinding binding{.states = &store, .block_table = table.data(), .row_stride = 4, .columns = 4};
  context.bind({&binding, 1});
  {
    const test::Pretending place({.memory = {.kind = detail::MemoryPlace::Kind::device, .device_id = 1}});
    const test::LaunchRecorder recorder;
    const auto named = doctest::Contains("device 1, and device 0 is in use");
    CHECK_THROWS_WITH_AS(SlotCopier{store}, named, InvalidArgument);
    CHECK_THROWS_WITH_AS((SlotCopier{store, other}), named, InvalidArgument);
    CHECK_THROWS_WITH_AS((StepCommitter{{&scratch, 1}, other, 1, 1}), named, InvalidArgument);
    CHECK_THROWS_WITH_AS(context.bind({&binding, 1}), doctest::Contains("block_table"), InvalidArgument);
    CHECK(recorder.record().launches.empty());
  }
  // The binding of before is the context's still.
  CHECK(context.bound());
  CHECK_NOTHROW(context.pre_step(
      stream, {.request = nobody.data(), .computed = nobody.data(), .scheduled = nobody.data(), .rows = 1}));
}
