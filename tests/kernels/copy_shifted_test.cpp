// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_array.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;

namespace {

std::int64_t window_min(const StateSpec& spec) {
  std::int64_t window = 100;
  for (const StateTensorSpec& tensor : spec.tensors())
    if (tensor.kind == StateKind::conv) window = std::min(window, tensor.window());
  return window;
}

void draw_shifts(Random& random, const StateSpec& spec, std::vector<SlotCopy>& plan) {
  for (SlotCopy& copy : plan) copy.conv_shift = static_cast<std::int32_t>(random.between(0, window_min(spec) - 1));
}

}  // namespace

TEST_CASE("shifted copies within one store equal the reference, in place and across slots") {
  test::for_each_seed(3000, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = test::random_spec(random);
    // Half of the stores are aligned, so that the widest words are used too.
    const std::size_t misalignment = random.chance(50) ? 0 : 15;
    StoreImage image(random, spec,
                     {.slots = random.between32(1, 9), .misalignment_max = misalignment, .padding_max = misalignment});
    const StateStore store = image.upload(stream);
    auto plan = test::random_plan(random, image.slots(), image.slots(), random.between32(0, 12), true);
    draw_shifts(random, spec, plan);
    SlotCopier copier(store, store);
    copier.copy_shifted(stream, plan);
    test::reference::copy_shifted(image, image, plan);
    REQUIRE(image.matches_device(stream));
  });
}

TEST_CASE("shifted copies between stores equal the reference, planned on host or device") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = test::random_spec(random);
    StoreImage src(random, spec, {.slots = random.between32(1, 6)});
    StoreImage dst(random, random.chance(50) ? test::converted_spec(random, spec) : spec,
                   {.slots = random.between32(1, 30)});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    auto plan = test::random_plan(random, src.slots(), dst.slots(), random.between32(1, 40), false);
    draw_shifts(random, spec, plan);
    SlotCopier copier(src_store, dst_store);
    DeviceResource resource;
    Buffer on_device(resource, plan.size() * sizeof(SlotCopy));
    if (random.chance(50)) {
      copier.copy_shifted(stream, plan);
    } else {
      copy_bytes(stream, on_device.data(), plan.data(), plan.size() * sizeof(SlotCopy));
      copier.copy_slots_on_device(stream, on_device.as<SlotCopy>(), static_cast<std::int32_t>(plan.size()));
    }
    test::reference::copy_shifted(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
    REQUIRE(src.matches_device(stream));
  });
}

TEST_CASE("states of many tiles are shifted and converted as the reference says") {
  test::for_each_seed(40, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const auto layout = random.chance(50) ? ConvLayout::sd : ConvLayout::ds;
    const auto type = random.chance(50) ? ElementType::bf16 : ElementType::fp32;
    const std::int64_t window = random.between(2, 8);
    const std::int64_t dim = random.chance(70) ? 16 * random.between(200, 1400) : random.between(3000, 20000);
    const StateSpec spec =
        StateSpec::uniform(2, {.window = window, .dim = dim, .type = type, .layout = layout},
                           {.shape = {random.between(1, 3), 64, random.between(60, 130)}, .type = type});
    const bool in_place = random.chance(50);
    StoreImage image(random, spec, {.slots = 4, .misalignment_max = 0, .padding_max = 0});
    StoreImage other(random, random.chance(50) ? test::converted_spec(random, spec) : spec,
                     {.slots = 4, .misalignment_max = 0, .padding_max = 0});
    const StateStore store = image.upload(stream);
    const StateStore other_store = other.upload(stream);
    StoreImage& written = in_place ? image : other;
    std::vector<SlotCopy> plan = {SlotCopy::whole(0, in_place ? 0 : 3), SlotCopy::whole(2, 1)};
    if (random.chance(70)) draw_shifts(random, spec, plan);
    SlotCopier copier(store, in_place ? store : other_store);
    test::DeviceArray on_device(plan);
    if (random.chance(50))
      copier.copy_shifted(stream, plan);
    else
      copier.copy_slots_on_device(stream, on_device.data(), 2);
    test::reference::copy_shifted(image, written, plan);
    REQUIRE(written.matches_device(stream));
  });
}

TEST_CASE("every window, shift, order, width and number of channels is shifted to the byte") {
  constexpr ElementType types[] = {ElementType::fp64, ElementType::fp32, ElementType::bf16, ElementType::fp8};
  constexpr std::int64_t channel_counts[] = {1, 7, 8, 33, 64, 1001};
  const Stream stream = Stream::default_stream();
  Random random(20261122);
  for (std::int64_t window = 2; window <= 12; ++window) {
    std::vector<StateTensorSpec> tensors;
    for (const ElementType type : types)
      for (const std::int64_t dim : channel_counts)
        for (const ConvLayout layout : {ConvLayout::sd, ConvLayout::ds})
          tensors.push_back(StateTensorSpec::conv(static_cast<std::int32_t>(tensors.size()),
                                                  {.window = window, .dim = dim, .type = type, .layout = layout}));
    const StateSpec spec(tensors);
    for (const std::size_t misalignment : {std::size_t{0}, std::size_t{15}}) {
      StoreImage image(random, spec, {.slots = 3, .misalignment_max = misalignment, .padding_max = misalignment});
      const StateStore store = image.upload(stream);
      SlotCopier copier(store, store);
      for (std::int32_t shift = 1; shift < window; ++shift) {
        CAPTURE(window);
        CAPTURE(shift);
        CAPTURE(misalignment);
        const SlotCopy plan[] = {{.src_slot = 0, .dst_slot = 0, .conv_shift = shift, .recurrent_src_slot = -1},
                                 {.src_slot = 1, .dst_slot = 2, .conv_shift = shift, .recurrent_src_slot = -1}};
        copier.copy_shifted(stream, plan);
        test::reference::copy_shifted(image, image, plan);
        REQUIRE(image.matches_device(stream));
      }
    }
  }
}

TEST_CASE("a shift of the whole window is refused") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  const StateStore store(resource, spec, {.slots = 2});
  SlotCopier copier(store, store);
  const SlotCopy whole_window = {.src_slot = 0, .dst_slot = 1, .conv_shift = 3, .recurrent_src_slot = 0};
  CHECK_THROWS_AS(copier.copy_shifted(stream, {&whole_window, 1}), InvalidArgument);
}
