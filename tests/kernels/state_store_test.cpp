// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/state_store.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "failing_resource.hpp"
#include "launch_recorder.hpp"
#include "statistics_resource.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;
using stateport::test::FailingResource;
using stateport::test::StatisticsResource;

namespace {
const StateSpec& small_spec() {
  static const StateSpec spec = StateSpec::uniform(3, {.window = 3, .dim = 5}, {.shape = {3, 3, 1}});
  return spec;
}
}  // namespace

TEST_CASE("layer-major tensors are contiguous over slots and do not overlap") {
  DeviceResource resource;
  const StateStore store(resource, small_spec(), {.slots = 4});
  REQUIRE(store.tensors().size() == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    const StateTensorView& tensor = store.tensors()[i];
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.base) % 256 == 0);
    CHECK(tensor.slot_stride_bytes % 16 == 0);
    CHECK(tensor.slot_stride_bytes >= static_cast<std::int64_t>(tensor.spec.natural_bytes()));
    if (i > 0) CHECK(tensor.base >= store.tensors()[i - 1].slot_data(SlotId{4}));
  }
}

TEST_CASE("slot-major slots are contiguous images") {
  DeviceResource resource;
  const StateStore store(resource, small_spec(), {.slots = 4, .layout = StoreLayout::slot_major});
  const std::int64_t image = store.tensors()[0].slot_stride_bytes;
  const std::byte* const begin = store.tensors()[0].base;
  for (const StateTensorView& tensor : store.tensors()) {
    CHECK(tensor.slot_stride_bytes == image);
    CHECK(tensor.base >= begin);
    CHECK(tensor.base + tensor.spec.natural_bytes() <= begin + image);
  }
}

TEST_CASE("a store gives back all it took, and a failed one leaves nothing") {
  DeviceResource device;
  StatisticsResource statistics(device);
  {
    StateStore store(statistics, small_spec(), {.slots = 4});
    StateStore moved(std::move(store));
    CHECK(moved.slots() == 4);
    CHECK(statistics.statistics().live_bytes > 0);
  }
  CHECK(statistics.statistics().live_bytes == 0);
  FailingResource failing(device);
  failing.fail_at(1);
  CHECK_THROWS_AS(StateStore(failing, small_spec(), {.slots = 4}), OutOfMemory);
}

TEST_CASE("a view costs no allocation, no fence and no launch") {
  DeviceResource device;
  StatisticsResource statistics(device);
  const StateStore store(statistics, small_spec(), {.slots = 4});
  const std::uint64_t allocations = statistics.statistics().allocations;
  const test::LaunchRecorder recorder;
  const StateStore view = StateStore::view(store.tensors(), 4);
  CHECK(view.fingerprint() == store.fingerprint());
  CHECK(recorder.record().fences + recorder.record().allocations == 0);
  CHECK(recorder.record().launches.empty());
  CHECK(statistics.statistics().allocations == allocations);
}

TEST_CASE("a store keeps room for the gaps of a conv state") {
  DeviceResource resource;
  const StateSpec spec({{.kind = StateKind::conv, .shape = {3, 4, 1}, .strides = {100, 5}}});
  const StateStore store(resource, spec, {.slots = 2});
  CHECK(store.tensors()[0].slot_stride_bytes >= static_cast<std::int64_t>(spec.tensors()[0].extent_bytes()));
  CHECK(spec.tensors()[0].extent_bytes() == (200 + 15 + 1) * 4);
}

TEST_CASE("stores refuse bad shapes of themselves") {
  DeviceResource resource;
  CHECK_THROWS_AS(StateStore(resource, small_spec(), {.slots = 0}), InvalidArgument);
  std::byte memory[64] = {};
  StateTensorView tensor{.spec = {.shape = {2, 2, 1}}, .base = memory, .slot_stride_bytes = 16};
  CHECK_NOTHROW(StateStore::view({&tensor, 1}, 2));
  CHECK_THROWS_AS(StateStore::view({}, 2), InvalidArgument);
  CHECK_THROWS_AS(StateStore::view({&tensor, 1}, 0), InvalidArgument);
  // With gaps, a slot is longer than its elements.
  const StateTensorView gaps{.spec = {.kind = StateKind::conv, .shape = {2, 2, 1}, .strides = {3, 1}},
                             .base = memory,
                             .slot_stride_bytes = 16};
  CHECK_THROWS_AS(StateStore::view({&gaps, 1}, 2), InvalidArgument);
  tensor.slot_stride_bytes = 15;
  CHECK_THROWS_AS(StateStore::view({&tensor, 1}, 2), InvalidArgument);
  tensor = {.spec = tensor.spec, .base = nullptr, .slot_stride_bytes = 16};
  CHECK_THROWS_AS(StateStore::view({&tensor, 1}, 2), InvalidArgument);
}

TEST_CASE("the fingerprint names the meaning of a slot's bytes, not their place") {
  DeviceResource resource;
  const StateStore layer_major(resource, small_spec(), {.slots = 2});
  const StateStore slot_major(resource, small_spec(), {.slots = 3, .layout = StoreLayout::slot_major});
  CHECK(layer_major.fingerprint() == slot_major.fingerprint());
  const StateStore other(resource, models::find("lfm2-1.2b"), {.slots = 1});
  CHECK(layer_major.fingerprint() != other.fingerprint());
}
