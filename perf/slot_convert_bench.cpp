// SPDX-License-Identifier: Apache-2.0
// Does a copy that converts fp32 to bf16 on the way run at the speed of the memory? Peer in the same run and over the
// same slots, on the same threads: a plain loop over each chunk; limit: a copy of as many bytes that converts nothing.
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "element_convert.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

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
  /// Poisons a round's destinations, converts, and says whether every element is what the plain loop makes of it.
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

}  // namespace
}  // namespace stateport::perf
