// SPDX-License-Identifier: Apache-2.0
// Does a copy that converts fp32 to bf16 on the way run at the speed of the memory? Peer in the same run and over the
// same slots, on the same threads: a plain loop over each chunk; limit: a copy of as many bytes that converts nothing.
// And the cost of a checkpoint in blocks of int8, to make and to restore. Peers: a plain loop, and a memcpy of the fp32
// bytes, the cost of a checkpoint that is not quantised.
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "block_encoding.hpp"
#include "comparison.hpp"
#include "element_convert.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t requests = 4;
constexpr std::int64_t elements = 32 * 128 * 128;
constexpr std::int32_t layers = 36;

StateSpec recurrent_spec(ElementType type) {
  return StateSpec::uniform(layers, {}, {.shape = {32, 128, 128}, .type = type});
}

class Workload {
 public:
  Workload()
      : fp32_(resource_, recurrent_spec(ElementType::fp32),
              {.slots = slots_in_pool(recurrent_spec(ElementType::fp32))}),
        bf16_(resource_, recurrent_spec(ElementType::bf16), {.slots = fp32_.slots()}),
        copier_(fp32_, bf16_) {
    fill_randomly(fp32_);
    fill_randomly(bf16_);
    for (const std::int32_t slot : shuffled_slots(fp32_)) plan_.push_back(SlotCopy::whole(slot, slot));
  }

  void convert(int round) { copier_.copy_slots(Stream::default_stream(), plan(round)); }
  void loop(int round) const {
    const CopyPlan copies = plan(round);
    const int chunks = requests * layers;
    Kokkos::parallel_for("convert_loop", Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(0, chunks), [&](int i) {
      const auto tensor = static_cast<std::size_t>(i % layers);
      const SlotId slot{copies[static_cast<std::size_t>(i / layers)].src_slot};
      convert_one(source(tensor, slot), destination(tensor, slot));
    });
  }
  /// Poisons a round's destinations and converts. Returns whether every element equals that of the plain loop.
  [[nodiscard]] bool converts_exactly() {
    const SlotId slot{plan(0)[1].src_slot};
    std::vector<std::uint16_t> expected(elements);
    convert_one(source(layers - 1, slot), expected.data());
    std::uint16_t* const data = destination(layers - 1, slot);
    std::memset(data, 0xA5, elements * 2);
    convert(0);
    return std::memcmp(expected.data(), data, elements * 2) == 0;
  }
  [[nodiscard]] static double moved_bytes() { return static_cast<double>(requests) * layers * elements * (4 + 2); }

 private:
  [[nodiscard]] CopyPlan plan(int round) const {
    const std::size_t rounds = plan_.size() / requests;
    return std::span(plan_).subspan(static_cast<std::size_t>(round) % rounds * requests, requests);
  }
  [[nodiscard]] const float* source(std::size_t tensor, SlotId slot) const {
    return reinterpret_cast<const float*>(fp32_.tensors()[tensor].slot_data(slot));
  }
  [[nodiscard]] std::uint16_t* destination(std::size_t tensor, SlotId slot) const {
    return reinterpret_cast<std::uint16_t*>(bf16_.tensors()[tensor].slot_data(slot));
  }
  static void convert_one(const float* from, std::uint16_t* to) {
    for (std::int64_t i = 0; i < elements; ++i) to[i] = convert::fp32_to_bf16(from[i]);
  }

  DeviceResource resource_;
  StateStore fp32_;
  StateStore bf16_;
  SlotCopier copier_;
  std::vector<SlotCopy> plan_;
};

void fp32_to_bf16(benchmark::State& state) {
  Workload workload;
  // Three states of bf16 are as many bytes as one that is converted: 2 + 2 of each against 4 + 2.
  CopyWorkload copy(recurrent_spec(ElementType::bf16), requests * 3 / 2);
  report(state,
         {{"ours", [&](int round) { workload.convert(round); }},
          {"loop", [&](int round) { workload.loop(round); }},
          {"copy", [&](int round) { copy.run(round); }}},
         Workload::moved_bytes());
  if (!workload.converts_exactly()) state.SkipWithError("a converted element differs from the plain loop's");
}
BENCHMARK(fp32_to_bf16)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

/// fp32 states and their checkpoints in blocks, slot by slot.
class BlocksWorkload {
 public:
  BlocksWorkload()
      : live_(resource_, recurrent_spec(ElementType::fp32),
              {.slots = slots_in_pool(recurrent_spec(ElementType::fp32))}),
        checkpoints_(resource_, recurrent_spec(ElementType::int8_block32), {.slots = live_.slots()}),
        encoder_(live_, checkpoints_),
        decoder_(checkpoints_, live_) {
    fill_with_numbers();
    for (const std::int32_t slot : shuffled_slots(live_)) plan_.push_back(SlotCopy::whole(slot, slot));
    encoder_.copy_slots(Stream::default_stream(), plan_);
  }

  void encode(int round) { encoder_.copy_slots(Stream::default_stream(), plan(round)); }
  void decode(int round) { decoder_.copy_slots(Stream::default_stream(), plan(round)); }
  void encode_loop(int round) const {
    for_each_tensor("encode_loop", round,
                    [&](std::size_t tensor, SlotId slot) { encode_one(live(tensor, slot), checkpoint(tensor, slot)); });
  }
  void decode_loop(int round) const {
    for_each_tensor("decode_loop", round,
                    [&](std::size_t tensor, SlotId slot) { decode_one(checkpoint(tensor, slot), live(tensor, slot)); });
  }
  /// Between the slots of this round and those of the next one.
  void copy_fp32(int round) const {
    const CopyPlan next = plan(round + 1);
    const CopyPlan now = plan(round);
    for_each_tensor("memcpy", round, [&](std::size_t tensor, SlotId slot) {
      const auto row = std::ranges::find(now, slot.value(), &SlotCopy::src_slot) - now.begin();
      std::memcpy(live(tensor, SlotId{next[static_cast<std::size_t>(row)].src_slot}), live(tensor, slot),
                  elements * sizeof(float));
    });
  }
  /// Whether ours and the plain loop make the same bytes, both ways.
  [[nodiscard]] bool converts_exactly() {
    const SlotId slot{plan(0)[1].src_slot};
    std::byte* const values = checkpoint(layers - 1, slot);
    float* const numbers = live(layers - 1, slot);
    std::vector<std::byte> expected(recurrent_spec(ElementType::int8_block32).slot_bytes() / layers);
    std::vector<float> decoded(elements);
    encode_one(numbers, expected.data());
    decode_one(expected.data(), decoded.data());
    std::memset(values, 0xA5, expected.size());
    encode(0);
    const bool encoded = std::memcmp(values, expected.data(), expected.size()) == 0;
    std::memset(numbers, 0xA5, elements * sizeof(float));
    decode(0);
    return encoded && std::memcmp(numbers, decoded.data(), elements * sizeof(float)) == 0;
  }
  [[nodiscard]] double moved_bytes() const {
    return static_cast<double>(requests) *
           static_cast<double>(live_.spec().slot_bytes() + checkpoints_.spec().slot_bytes());
  }

 private:
  static constexpr std::int64_t block = BlockLayout::block_elements;

  [[nodiscard]] CopyPlan plan(int round) const {
    const std::size_t rounds = plan_.size() / requests;
    return std::span(plan_).subspan(static_cast<std::size_t>(round) % rounds * requests, requests);
  }
  [[nodiscard]] float* live(std::size_t tensor, SlotId slot) const {
    return reinterpret_cast<float*>(live_.tensors()[tensor].slot_data(slot));
  }
  [[nodiscard]] std::byte* checkpoint(std::size_t tensor, SlotId slot) const {
    return checkpoints_.tensors()[tensor].slot_data(slot);
  }
  template <class Body>
  void for_each_tensor(const char* label, int round, const Body& body) const {
    const CopyPlan copies = plan(round);
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(0, requests * layers), [&](int i) {
      body(static_cast<std::size_t>(i % layers), SlotId{copies[static_cast<std::size_t>(i / layers)].src_slot});
    });
  }
  /// Random numbers in [-1, -0.5] and [0.5, 1]: of random bits, most blocks would be NaN or saturated.
  void fill_with_numbers() const {
    std::uint64_t bits = 1;
    for (std::size_t tensor = 0; tensor < live_.tensors().size(); ++tensor)
      for (std::int32_t slot = 0; slot < live_.slots(); ++slot)
        for (std::int64_t i = 0; i < elements; ++i) {
          bits = bits * 6364136223846793005u + 1442695040888963407u;
          const auto fraction_and_sign = static_cast<std::uint32_t>(bits >> 32) & 0x807FFFFFu;
          live(tensor, SlotId{slot})[i] = std::bit_cast<float>(fraction_and_sign | 0x3F000000u);
        }
  }
  static void encode_one(const float* from, std::byte* to) {
    for (std::int64_t at = 0; at < elements; at += block) {
      std::int32_t magnitude = 0;
      for (std::int64_t k = at; k < at + block; ++k) magnitude = std::max(magnitude, convert::magnitude_bits(from[k]));
      const std::uint16_t scale = convert::block_scale(magnitude);
      std::memcpy(to + elements + at / block * BlockLayout::scale_bytes, &scale, sizeof scale);
      for (std::int64_t k = at; k < at + block; ++k)
        to[k] = static_cast<std::byte>(convert::block_value(from[k], convert::fp16_to_fp32(scale)));
    }
  }
  static void decode_one(const std::byte* from, float* to) {
    for (std::int64_t at = 0; at < elements; at += block) {
      std::uint16_t scale;
      std::memcpy(&scale, from + elements + at / block * BlockLayout::scale_bytes, sizeof scale);
      for (std::int64_t k = at; k < at + block; ++k)
        to[k] = convert::block_element(static_cast<std::int8_t>(from[k]), convert::fp16_to_fp32(scale));
    }
  }

  DeviceResource resource_;
  StateStore live_;
  StateStore checkpoints_;
  SlotCopier encoder_;
  SlotCopier decoder_;
  std::vector<SlotCopy> plan_;
};

void fp32_to_blocks(benchmark::State& state) {
  BlocksWorkload workload;
  report(state,
         {{"ours", [&](int round) { workload.encode(round); }},
          {"loop", [&](int round) { workload.encode_loop(round); }},
          {"memcpy", [&](int round) { workload.copy_fp32(round); }}},
         workload.moved_bytes());
  if (!workload.converts_exactly()) state.SkipWithError("an encoded or decoded element differs from the plain loop's");
}
BENCHMARK(fp32_to_blocks)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

void blocks_to_fp32(benchmark::State& state) {
  BlocksWorkload workload;
  report(state,
         {{"ours", [&](int round) { workload.decode(round); }},
          {"loop", [&](int round) { workload.decode_loop(round); }},
          {"memcpy", [&](int round) { workload.copy_fp32(round); }}},
         workload.moved_bytes());
}
BENCHMARK(blocks_to_fp32)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
