// SPDX-License-Identifier: Apache-2.0
// Copies into and out of stores whose recurrent tensors are in blocks, and the GPU's functions for ranges of blocks.
#include "block_copy.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "device_array.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;
namespace reference = test::reference;

namespace {

constexpr std::array<ElementType, 3> live_types{ElementType::fp32, ElementType::fp16, ElementType::bf16};

ElementType live_type(Random& random) {
  return live_types[static_cast<std::size_t>(random.between(0, 2))];
}

/// Numbers of one magnitude for each 32 elements, so that blocks have scales of all kinds; some are extreme. Random
/// bits would nearly all be far too large for a scale.
void write_numbers(Random& random, std::byte* at, ElementType type, std::int64_t elements) {
  double magnitude = 1;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (i % 32 == 0) magnitude = random.chance(5) ? 0 : std::ldexp(1.0, static_cast<int>(random.between(-30, 12)));
    auto number = static_cast<float>(magnitude * static_cast<double>(random.between(-1000, 1000)) / 1000);
    if (random.chance(1) && random.chance(20)) {
      constexpr float extremes[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                                    1e30f, 0x1p-140f, -0.0f};
      number = extremes[random.between(0, 4)];
    }
    reference::store(at + i * static_cast<std::int64_t>(element_bytes(type)), type, number);
  }
}

void write_states(Random& random, StoreImage& image) {
  for (std::size_t i = 0; i < image.tensor_count(); ++i)
    for (std::int32_t slot = 0; slot < image.slots(); ++slot)
      if (image.tensor(i).kind == StateKind::recurrent)
        write_numbers(random, image.slot(i, slot), image.tensor(i).type, image.tensor(i).element_count());
}

/// conv and recurrent tensors whose rows have fewer, as many and more elements than a block, or several blocks.
StateSpec live_spec(Random& random) {
  constexpr std::int64_t rows[] = {1, 2, 15, 16, 31, 32, 33, 63, 64, 65, 96, 128, 1000, 4096};
  std::vector<StateTensorSpec> tensors;
  const std::int32_t layers = random.between32(1, 4);
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (random.chance(50))
      tensors.push_back(StateTensorSpec::conv(layer, {.window = random.between(1, 5), .dim = random.between(1, 40)}));
    const std::int64_t row = rows[random.between(0, 13)];
    std::array<std::int64_t, 3> shape = {random.between(1, 9), random.between(1, 9), row};
    if (random.chance(20)) shape = {random.between(1, 9), row, 1};
    if (random.chance(10)) shape = {row, 1, 1};
    tensors.push_back({.layer = layer, .type = live_type(random), .shape = shape});
  }
  return StateSpec(std::move(tensors));
}

}  // namespace

TEST_CASE("states are encoded into checkpoints of any alignment and stride, and decoded again") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = live_spec(random);
    // Half of the stores are aligned, so that whole blocks are taken at once.
    const std::size_t misalignment = random.chance(50) ? 0 : 15;
    const test::ImageOptions layout{.slots = 6, .misalignment_max = misalignment, .padding_max = misalignment};
    StoreImage live(random, spec, layout);
    write_states(random, live);
    StoreImage checkpoints(random, quantised(spec, ElementType::int8_block32), layout);
    StoreImage restored(random, quantised(spec, live_type(random)), layout);
    const StateStore live_store = live.upload(stream);
    const StateStore checkpoint_store = checkpoints.upload(stream);
    const StateStore restored_store = restored.upload(stream);
    const auto encodes = test::random_plan(random, 6, 6, random.between32(1, 8), false);
    SlotCopier(live_store, checkpoint_store).copy_slots(stream, encodes);
    reference::copy_slots(live, checkpoints, encodes);
    REQUIRE(checkpoints.matches_device(stream));
    REQUIRE(live.matches_device(stream));
    // Slots that were not written hold random bytes: any scale decodes, a NaN and a negative one, too.
    const auto decodes = test::random_plan(random, 6, 6, random.between32(1, 8), false);
    SlotCopier(checkpoint_store, restored_store).copy_slots(stream, decodes);
    reference::copy_slots(checkpoints, restored, decodes);
    REQUIRE(restored.matches_device(stream));
  });
}

TEST_CASE("images of states are encoded and decoded as slots are, large launches, too") {
  const Stream stream = Stream::default_stream();
  Random random(5);
  MESSAGE("seed 5");
  const StateSpec spec = StateSpec::uniform(3, {.window = 3, .dim = 64}, {.shape = {8, 64, 128}});
  constexpr std::int32_t slots = 9;
  StoreImage live(random, spec, {.slots = slots, .misalignment_max = 0, .padding_max = 0});
  write_states(random, live);
  StoreImage decoded(random, spec, {.slots = slots, .misalignment_max = 0, .padding_max = 0});
  const StateStore live_store = live.upload(stream);
  const StateStore decoded_store = decoded.upload(stream);
  DeviceResource resource;
  const StateStore images(resource, quantised(spec, ElementType::int8_block32),
                          {.slots = slots, .layout = StoreLayout::slot_major});
  CHECK(images.spec().slot_bytes() == 3 * (3 * 64 * 2 + 8 * 64 * (128 + 4 * 2)));
  std::vector<SlotCopy> there;
  std::vector<SlotCopy> back;
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    there.push_back(SlotCopy::whole(slot, slots - 1 - slot));
    back.push_back(SlotCopy::whole(slots - 1 - slot, slot));
  }
  SlotCopier(live_store, images).copy_slots(stream, there);
  SlotCopier(images, decoded_store).copy_slots(stream, back);
  StoreImage expected_images(random, images.spec(), {.slots = slots});
  reference::copy_slots(live, expected_images, there);
  reference::copy_slots(expected_images, decoded, back);
  REQUIRE(decoded.matches_device(stream));
  // A decoded state is a fixed point: its next checkpoint has the same bytes.
  const StateStore again(resource, images.spec(), {.slots = slots, .layout = StoreLayout::slot_major});
  SlotCopier(decoded_store, again).copy_slots(stream, there);
  for (std::size_t i = 0; i < images.tensors().size(); ++i)
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      std::vector<std::byte> first(images.tensors()[i].spec.natural_bytes());
      std::vector<std::byte> second(first.size());
      copy_bytes(stream, first.data(), images.tensors()[i].slot_data(SlotId{slot}), first.size());
      copy_bytes(stream, second.data(), again.tensors()[i].slot_data(SlotId{slot}), second.size());
      stream.synchronize();
      REQUIRE(first == second);
    }
}

TEST_CASE("many lanes encode and decode a range of blocks as one does, and touch nothing behind it") {
  test::for_each_seed(200, [](Random& random, std::uint64_t) {
    const auto row = static_cast<std::uint32_t>(random.chance(50) ? 32 * random.between(1, 3) : random.between(1, 70));
    const auto rows = static_cast<std::uint32_t>(random.between(1, random.chance(20) ? 800 : 20));
    const ElementType type = live_type(random);
    const StateTensorSpec plain{.type = type, .shape = {rows, row, 1}};
    const StateTensorSpec blocks{.type = ElementType::int8_block32, .shape = {rows, row, 1}};
    const auto bytes_at = [&](std::size_t bytes) {
      return std::vector<std::byte>(bytes + static_cast<std::size_t>(random.chance(50) ? 0 : random.between(1, 3)));
    };
    std::vector<std::byte> state = bytes_at(plain.natural_bytes());
    std::byte* const elements = state.data() + (state.size() - plain.natural_bytes());
    write_numbers(random, elements, type, plain.element_count());
    std::vector<std::byte> expected(blocks.natural_bytes());
    std::vector<std::byte> expected_state(plain.natural_bytes());
    reference::copy_blocks(elements, plain, expected.data(), blocks);
    reference::copy_blocks(expected.data(), blocks, expected_state.data(), plain);
    const BlockLayout layout = blocks.block_layout();
    kernels::TensorRoute route{.window = static_cast<std::uint32_t>(layout.rows),
                               .dim = static_cast<std::uint32_t>(layout.row_elements),
                               .mode = kernels::TensorRoute::Mode::blocks};
    const auto count = static_cast<std::uint32_t>(layout.blocks());
    const auto half = static_cast<std::uint32_t>(random.between(0, count));
    for (const std::uint32_t lanes : {1u, 3u, 256u}) {
      const auto run = [&](ElementType from, ElementType to, const std::byte* src, std::byte* dst) {
        route.src_type = from;
        route.dst_type = to;
        route.element_bytes = static_cast<std::uint8_t>(element_bytes(to));
        for (std::uint32_t lane = 0; lane < lanes; ++lane) {
          CHECK(kernels::copy_blocks(lane, lanes, route, dst, src, 0, half) == (from != to));
          CHECK(kernels::copy_blocks(lane, lanes, route, dst, src, half, count - half) == (from != to));
        }
      };
      std::vector<std::byte> encoded(expected.size(), std::byte{0xA5});
      run(type, ElementType::int8_block32, elements, encoded.data());
      REQUIRE(encoded == expected);
      std::vector<std::byte> decoded(expected_state.size(), std::byte{0xA5});
      run(ElementType::int8_block32, type, encoded.data(), decoded.data());
      REQUIRE(decoded == expected_state);
      // Only the scales: values are moved as any other bytes.
      std::vector<std::byte> moved(encoded.begin(), encoded.begin() + blocks.element_count());
      moved.resize(expected.size());
      run(ElementType::int8_block32, ElementType::int8_block32, encoded.data(), moved.data());
      REQUIRE(moved == expected);
    }
  });
}

TEST_CASE("a restored state of a real model is within half a scale of the kept one, its conv state equal") {
  const Stream stream = Stream::default_stream();
  Random random(6);
  MESSAGE("seed 6");
  const StateSpec full = models::find("qwen3-next-80b-a3b", {.recurrent_type = ElementType::fp32});
  const StateSpec spec({full.tensors()[0], full.tensors()[1]});
  StoreImage live(random, spec, {.slots = 1});
  const StateTensorSpec& recurrent = live.tensor(1);
  std::vector<float> numbers(static_cast<std::size_t>(recurrent.element_count()));
  for (float& number : numbers) number = static_cast<float>(random.between(-1'000'000, 1'000'000)) * 1e-6f;
  std::memcpy(live.slot(1, 0), numbers.data(), numbers.size() * sizeof(float));
  StoreImage restored(random, spec, {.slots = 1});
  const StateStore live_store = live.upload(stream);
  const StateStore restored_store = restored.upload(stream);
  DeviceResource resource;
  const StateStore checkpoints(resource, quantised(spec, ElementType::int8_block32), {.slots = 2});
  const std::vector<SlotCopy> keep = {SlotCopy::whole(0, 1)};
  const std::vector<SlotCopy> restore = {SlotCopy::whole(1, 0)};
  SlotCopier(live_store, checkpoints).copy_slots(stream, keep);
  SlotCopier(checkpoints, restored_store).copy_slots(stream, restore);
  std::vector<float> now(numbers.size());
  copy_bytes(stream, now.data(), restored_store.tensors()[1].slot_data(SlotId{0}), now.size() * sizeof(float));
  std::vector<std::byte> conv(live.tensor(0).natural_bytes());
  copy_bytes(stream, conv.data(), restored_store.tensors()[0].slot_data(SlotId{0}), conv.size());
  stream.synchronize();
  CHECK(std::memcmp(conv.data(), live.slot(0, 0), conv.size()) == 0);
  double worst = 0;
  for (std::size_t i = 0; i < now.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(now[i]) - static_cast<double>(numbers[i])));
  constexpr double scale_max = 1.0 / 127 * (1 + 0x1p-9);
  CHECK(worst <= scale_max / 2);
  CHECK(worst > 0.4 * scale_max);
}

TEST_CASE("checkpoints in blocks are refused where states of running requests belong") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(1, {.window = 4, .dim = 8}, {.shape = {4, 2, 32}});
  const StateSpec blocks = quantised(spec, ElementType::int8_block32);
  const StateStore checkpoints(resource, blocks, {.slots = 8});
  AlignContext align({.max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 8}}});
  test::DeviceArray table(std::vector<std::int32_t>(8, 0));
  const AlignBinding binding{.states = &checkpoints, .block_table = table.data(), .row_stride = 8, .columns = 8};
  std::string refused;
  try {
    align.bind({&binding, 1});
  } catch (const InvalidArgument& error) {
    refused = error.argument() + " = " + error.value();
  }
  CHECK(refused == "states = int8_block32");
  // One memory cannot be both, and other types cannot be encoded.
  std::vector<StateTensorView> tensors(checkpoints.tensors().begin(), checkpoints.tensors().end());
  tensors[1].spec.type = ElementType::fp16;
  tensors[1].spec.shape = {4, 2, 32};
  tensors[1].slot_stride_bytes = 4 * 2 * 32 * 2;
  const StateStore same_memory = StateStore::view(tensors, 2);
  CHECK_THROWS_AS(SlotCopier(same_memory, checkpoints), InvalidArgument);
  for (const ElementType type : {ElementType::fp64, ElementType::fp8, ElementType::int8}) {
    const StateStore other(resource, StateSpec({spec.tensors()[0], {.type = type, .shape = {4, 2, 32}}}), {.slots = 2});
    CHECK_THROWS_AS(SlotCopier(other, checkpoints), InvalidArgument);
    CHECK_THROWS_AS(SlotCopier(checkpoints, other), InvalidArgument);
  }
}
