// SPDX-License-Identifier: Apache-2.0
// Copies of a range of layers: those of disjoint ranges add up to one of all layers, and touch no other layer.
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_array.hpp"
#include "launch_recorder.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;

namespace {

/// The tensors of a random spec, in any order, their layers anywhere in [0, 6).
StateSpec any_layers(Random& random) {
  const StateSpec drawn = test::random_spec(random);
  std::vector<StateTensorSpec> tensors(drawn.tensors().begin(), drawn.tensors().end());
  for (StateTensorSpec& tensor : tensors) tensor.layer = random.between32(0, 5);
  return StateSpec(std::move(tensors));
}

std::int32_t layers_of(const StateSpec& spec) {
  return 1 + std::ranges::max(spec.tensors(), {}, &StateTensorSpec::layer).layer;
}

/// The reference, tensor by tensor, of the layers in the range.
void copy_layers(StoreImage& src, StoreImage& dst, CopyPlan plan, LayerRange layers) {
  for (const SlotCopy& copy : plan)
    for (std::size_t i = 0; copy.dst_slot >= 0 && i < src.tensor_count(); ++i) {
      const bool conv = src.tensor(i).kind == StateKind::conv;
      const std::int32_t from = conv ? copy.src_slot : copy.recurrent_src_slot;
      if (from < 0 || dst.tensor(i).layer < layers.begin || dst.tensor(i).layer >= layers.end) continue;
      if (conv)
        test::reference::shift_conv(src.slot(i, from), src.tensor(i), dst.slot(i, copy.dst_slot), dst.tensor(i),
                                    copy.conv_shift);
      else
        test::reference::copy_tensor(src.slot(i, from), src.tensor(i), dst.slot(i, copy.dst_slot), dst.tensor(i));
    }
}

}  // namespace

TEST_CASE("a copy of some layers equals the reference of these layers, by each of the four calls") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = any_layers(random);
    StoreImage src(random, spec, {.slots = random.between32(1, 6)});
    StoreImage dst(random, random.chance(30) ? test::converted_spec(random, spec) : spec,
                   {.slots = random.between32(1, 30)});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    auto plan = test::random_plan(random, src.slots(), dst.slots(), random.between32(1, 40), false);
    const std::int32_t begin = random.between32(0, layers_of(spec));
    const LayerRange layers{begin, random.between32(begin, layers_of(spec))};
    SlotCopier copier(src_store, dst_store);
    const std::int64_t call = random.between(0, 3);
    if (call == 1)
      for (SlotCopy& copy : plan) {
        std::int64_t window = 100;
        for (const StateTensorSpec& tensor : spec.tensors())
          if (tensor.kind == StateKind::conv) window = std::min(window, tensor.window());
        copy.conv_shift = static_cast<std::int32_t>(random.between(0, window - 1));
      }
    test::DeviceArray on_device(plan);
    switch (call) {
      case 0:
        copier.copy_slots(stream, plan, layers);
        break;
      case 1:
        copier.copy_shifted(stream, plan, layers);
        break;
      case 2:
        copier.copy_slots_on_device(stream, on_device.data(), static_cast<std::int32_t>(plan.size()), layers);
        break;
      default: {
        const std::span<const SlotCopy> all = plan;
        const std::size_t half = all.size() / 2;
        SlotCopier committer(src_store, src_store, dst_store);
        committer.commit_scratch(stream, all.first(half), all.subspan(half), layers);
        stream.synchronize();
      }
    }
    copy_layers(src, dst, plan, layers);
    REQUIRE(dst.matches_device(stream));
  });
}

TEST_CASE("layers copied one range after the other are the whole state, in one launch a range") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  Random random(7);
  const StateSpec spec = StateSpec::uniform(6, {.window = 3, .dim = 40}, {.shape = {4, 8, 9}});
  StoreImage src(random, spec, {.slots = 3});
  StoreImage dst(random, spec, {.slots = 3});
  const StateStore src_store = src.upload(stream);
  const StateStore dst_store = dst.upload(stream);
  SlotCopier copier(src_store, dst_store);
  const std::vector<SlotCopy> plan = {SlotCopy::whole(2, 0), SlotCopy::whole(0, 1)};
  const test::LaunchRecorder recorder;
  for (const LayerRange layers : {LayerRange{0, 1}, {1, 4}, {4, 4}, {4, 6}}) copier.copy_slots(stream, plan, layers);
  CHECK(recorder.record().launches.size() == 3);
  CHECK(recorder.record().fences + recorder.record().allocations == 0);
  test::reference::copy_slots(src, dst, plan);
  CHECK(dst.matches_device(stream));
}

TEST_CASE("a range of layers that the stores do not have is refused") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(3, {}, {.shape = {4, 2, 2}}), {.slots = 2});
  SlotCopier copier(store);
  const SlotCopy copy = SlotCopy::whole(0, 1);
  for (const LayerRange layers : {LayerRange{-1, 2}, {2, 1}, {0, 4}, {4, 4}, {1, INT32_MAX}})
    CHECK_THROWS_AS(copier.copy_slots(stream, {&copy, 1}, layers), InvalidArgument);
  CHECK_NOTHROW(copier.copy_slots(stream, {&copy, 1}, {3, 3}));
  CHECK_NOTHROW(copier.copy_slots(stream, {&copy, 1}, {0, 3}));
}

TEST_CASE("layer numbers with gaps between them cost nothing") {
  const Stream stream = Stream::default_stream();
  Random random(8);
  const StateSpec spec({{.layer = INT32_MAX - 1, .shape = {4, 4, 1}}, {.layer = 5, .shape = {4, 4, 1}}});
  StoreImage src(random, spec, {.slots = 2});
  StoreImage dst(random, spec, {.slots = 2});
  const StateStore src_store = src.upload(stream);
  const StateStore dst_store = dst.upload(stream);
  SlotCopier copier(src_store, dst_store);
  const SlotCopy plan[] = {SlotCopy::whole(0, 1)};
  copier.copy_slots(stream, plan, {0, 1000});
  copy_layers(src, dst, plan, {0, 1000});
  CHECK(dst.matches_device(stream));
}
