// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_array.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;
namespace reference = test::reference;

TEST_CASE("copies within one store equal the reference, guard bands included") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    StoreImage image(random, test::random_spec(random), {.slots = random.between32(1, 9)});
    const StateStore store = image.upload(stream);
    const auto plan = test::random_plan(random, image.slots(), image.slots(), random.between32(0, 12), true);
    SlotCopier(store).copy_slots(stream, plan);
    reference::copy_slots(image, image, plan);
    REQUIRE(image.matches_device(stream));
  });
}

TEST_CASE("images in pinned memory reach the device whole, and come back") {
  const Stream stream = Stream::default_stream();
  DeviceResource device;
  PinnedResource pinned;
  Random random(20261127);
  // The vendor's runtime copies whole states whose tensors are words of 16 bytes. Others leave gaps in their images.
  for (const std::int64_t dim : {64, 33}) {
    const StateSpec spec = StateSpec::uniform(3, {.window = 4, .dim = dim}, {.shape = {2, 8, 8}});
    const StoreOptions options{.slots = 5, .layout = StoreLayout::slot_major};
    const StateStore from(pinned, spec, options), on_device(device, spec, options), back(pinned, spec, options);
    const auto each_slot = [&](const auto& body) {
      for (std::size_t i = 0; i < from.tensors().size(); ++i)
        for (SlotId slot{0}; slot.value() < 5; slot = SlotId{slot.value() + 1})
          body(from.tensors()[i].slot_data(slot), back.tensors()[i].slot_data(slot), from.tensors()[i].spec, slot);
    };
    each_slot([&](std::byte* data, std::byte* copy, const StateTensorSpec& tensor, SlotId) {
      std::generate_n(data, tensor.natural_bytes(), [&] { return static_cast<std::byte>(random.bits()); });
      std::fill_n(copy, tensor.natural_bytes(), std::byte{0x5A});
    });
    const std::vector<SlotCopy> up = {SlotCopy::whole(4, 0), SlotCopy::whole(1, 3), SlotCopy::whole(-1, 2)};
    const std::vector<SlotCopy> down = {SlotCopy::whole(0, 4), SlotCopy::whole(3, 1)};
    SlotCopier(from, on_device).copy_slots(stream, up);
    SlotCopier(on_device, back).copy_slots(stream, down);
    stream.synchronize();
    each_slot([&](const std::byte* data, const std::byte* copy, const StateTensorSpec& tensor, SlotId slot) {
      const bool copied = slot.value() == 4 || slot.value() == 1;
      for (std::size_t byte = 0; byte < tensor.natural_bytes(); ++byte)
        REQUIRE(copy[byte] == (copied ? data[byte] : std::byte{0x5A}));
    });
    // A recurrent state alone is no image.
    const SlotCopy recurrent{.src_slot = -1, .dst_slot = 2, .recurrent_src_slot = 3};
    SlotCopier(on_device, back).copy_slots(stream, {&recurrent, 1});
    stream.synchronize();
    each_slot([&](const std::byte*, const std::byte* copy, const StateTensorSpec& tensor, SlotId slot) {
      if (slot.value() != 2 || tensor.kind == StateKind::recurrent) return;
      REQUIRE(std::all_of(copy, copy + tensor.natural_bytes(), [](std::byte b) { return b == std::byte{0x5A}; }));
    });
  }
}

TEST_CASE("aligned states of many tiles are converted, and others are copied beside them") {
  test::for_each_seed(12, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const auto spec = [&](ElementType type) {
      return StateSpec::uniform(2, {.window = 4, .dim = 8 * 1100, .type = ElementType::bf16},
                                {.shape = {3, 64, 100}, .type = type});
    };
    const bool to_bf16 = random.chance(50);
    const test::ImageOptions options{.slots = 3, .misalignment_max = 0, .padding_max = 0};
    StoreImage src(random, spec(to_bf16 ? ElementType::fp32 : ElementType::bf16), options);
    StoreImage dst(random, spec(to_bf16 ? ElementType::bf16 : ElementType::fp32), options);
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    const std::vector<SlotCopy> plan = {SlotCopy::whole(2, 0), SlotCopy::whole(1, 2)};
    SlotCopier(src_store, dst_store).copy_slots(stream, plan);
    reference::copy_slots(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
  });
}

TEST_CASE("copies between stores convert types, transpose conv layouts and cross any alignment") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = test::random_spec(random);
    StoreImage src(random, spec, {.slots = random.between32(1, 6)});
    const bool many = random.chance(3);
    StoreImage dst(random, random.chance(70) ? test::converted_spec(random, spec) : spec,
                   {.slots = many ? 300 : random.between32(1, 40)});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    // Few copies, many, and more than travel as kernel arguments.
    const std::int32_t copies = many ? random.between32(100, 300) : random.between32(0, 60);
    const auto plan = test::random_plan(random, src.slots(), dst.slots(), copies, false);
    SlotCopier copier(src_store, dst_store);
    copier.copy_slots(stream, plan);
    reference::copy_slots(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
    REQUIRE(src.matches_device(stream));
  });
}

TEST_CASE("a launch that is larger than a cache copies the same, pieces of any length and alignment") {
  test::for_each_seed(6, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    std::vector<StateTensorSpec> tensors;
    for (std::int32_t layer = 0; layer < 5; ++layer)
      tensors.push_back({.layer = layer,
                         .kind = layer % 2 == 0 ? StateKind::conv : StateKind::recurrent,
                         .type = random.chance(50) ? ElementType::bf16 : ElementType::fp32,
                         .shape = {3, random.between(1, 2000), layer % 2 == 0 ? 1 : random.between(1, 3)}});
    tensors.push_back({.layer = 5, .shape = {3, 2000, 1}});
    const StateSpec spec(std::move(tensors));
    StoreImage src(random, spec, {.slots = 9});
    StoreImage dst(random, random.chance(50) ? test::converted_spec(random, spec, test::SpecUse::live) : spec,
                   {.slots = 400});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    std::vector<SlotCopy> plan;
    for (std::int32_t slot = 0; slot < dst.slots(); ++slot)
      plan.push_back(SlotCopy::whole(random.between32(0, src.slots() - 1), slot));
    REQUIRE(plan.size() * dst_store.spec().slot_bytes() >= std::size_t{4} << 20);
    SlotCopier copier(src_store, dst_store);
    copier.copy_slots(stream, plan);
    reference::copy_slots(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
  });
}

TEST_CASE("a plan in device memory copies the same and skips slots out of range") {
  test::for_each_seed(500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = test::random_spec(random);
    StoreImage src(random, spec, {.slots = random.between32(1, 6)});
    StoreImage dst(random, spec, {.slots = random.between32(1, 40)});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    auto plan = test::random_plan(random, src.slots(), dst.slots(), random.between32(1, 60), false);
    plan.push_back(SlotCopy::whole(src.slots(), 0));
    plan.push_back(SlotCopy::whole(0, dst.slots()));
    DeviceResource resource;
    Buffer on_device(resource, plan.size() * sizeof(SlotCopy));
    copy_bytes(stream, on_device.data(), plan.data(), plan.size() * sizeof(SlotCopy));
    SlotCopier copier(src_store, dst_store);
    copier.copy_slots_on_device(stream, on_device.as<SlotCopy>(), static_cast<std::int32_t>(plan.size()));
    plan.resize(plan.size() - 2);
    reference::copy_slots(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
  });
}

TEST_CASE("a plan in device memory may have more rows than a team of a GPU lists at once") {
  test::for_each_seed(20, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = StateSpec::uniform(1, {.window = 3, .dim = 4}, {.shape = {1, 2, 4}});
    const std::int32_t rows = random.between32(1025, 3000);
    StoreImage src(random, spec, {.slots = 20});
    StoreImage dst(random, spec, {.slots = rows});
    const StateStore src_store = src.upload(stream);
    const StateStore dst_store = dst.upload(stream);
    std::vector<SlotCopy> plan;
    for (std::int32_t row = 0; row < rows; ++row)
      plan.push_back(SlotCopy::whole(random.chance(30) ? random.between32(0, 19) : -1, row));
    test::DeviceArray on_device(plan);
    SlotCopier copier(src_store, dst_store);
    copier.copy_slots_on_device(stream, on_device.data(), rows);
    reference::copy_slots(src, dst, plan);
    REQUIRE(dst.matches_device(stream));
  });
}

TEST_CASE("copies reach slots beyond 2 GiB") {
  // Untouched memory costs nothing on a host; a GPU that runs these tests has it.
  const Stream stream = Stream::default_stream();
  constexpr std::int64_t stride = std::int64_t{5} << 29;  // 2.5 GiB
  DeviceResource resource;
  Buffer memory(resource, static_cast<std::size_t>(stride) + 4096);
  const StateTensorView tensor{
      .spec = {.shape = {8, 8, 4}}, .base = memory.as<std::byte>(), .slot_stride_bytes = stride};
  const StateStore store = StateStore::view({&tensor, 1}, 2);
  std::vector<std::byte> pattern(tensor.spec.natural_bytes());
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 7 + 1);
  copy_bytes(stream, tensor.slot_data(SlotId{1}), pattern.data(), pattern.size());
  const SlotCopy back = SlotCopy::whole(1, 0);
  SlotCopier(store).copy_slots(stream, {&back, 1});
  std::vector<std::byte> got(pattern.size());
  copy_bytes(stream, got.data(), tensor.base, got.size());
  stream.synchronize();
  CHECK(got == pattern);
}

TEST_CASE("a copier refuses stores that do not fit and plans that cannot run") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore a(resource, StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}}), {.slots = 3});
  const StateStore other_shape(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {.shape = {4, 2, 2}}),
                               {.slots = 3});
  const StateStore fewer(resource, StateSpec::uniform(1, {.window = 3, .dim = 8}, {}), {.slots = 3});
  const StateStore bytes(resource,
                         StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}, .type = ElementType::fp8}),
                         {.slots = 3});
  CHECK_THROWS_AS(SlotCopier(a, other_shape), InvalidArgument);
  for (const std::array<std::int64_t, 3> shape : {std::array<std::int64_t, 3>{4, 2, 3}, {4, 3, 2}, {5, 2, 2}}) {
    const StateStore other(resource, StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = shape}), {.slots = 3});
    CHECK_THROWS_AS(SlotCopier(a, other), InvalidArgument);
  }
  CHECK_THROWS_AS(SlotCopier(a, fewer), InvalidArgument);
  CHECK_THROWS_AS(SlotCopier(a, bytes), InvalidArgument);
  SlotCopier copier(a, a);
  const auto refused = [&](SlotCopy copy) { CHECK_THROWS_AS(copier.copy_slots(stream, {&copy, 1}), InvalidArgument); };
  refused(SlotCopy::whole(3, 0));
  refused(SlotCopy::whole(0, 3));
  refused({.src_slot = 0, .dst_slot = 1, .conv_shift = 1, .recurrent_src_slot = 0});
  CHECK_THROWS_AS(copier.copy_slots_on_device(stream, nullptr, 1), InvalidArgument);
  CHECK_THROWS_AS(copier.copy_slots_on_device(stream, nullptr, -1), InvalidArgument);
  CHECK_THROWS_AS(copier.commit_scratch(stream, {}, {}), InvalidArgument);
  const SlotId bad{3};
  CHECK_THROWS_AS(copier.clear_slots(stream, {&bad, 1}), InvalidArgument);
}
