// SPDX-License-Identifier: Apache-2.0
// The cost of the in-place shift of conv windows that the align modes do after a step with drafts. Peer in the same run
// and over the same slots, on the same threads: memmove, once per window (sd) or once per channel (ds).
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t requests = 64;
constexpr std::int64_t window = 6;  // kernel 4, 3 drafts
constexpr std::size_t element = 2;

/// Qwen3-Next's conv tensors.
StateSpec conv_spec(ConvLayout layout) {
  return StateSpec::uniform(36, {.window = window, .dim = 8192, .layout = layout}, {});
}

/// Random windows and, per round, the slots to shift.
class Workload {
 public:
  explicit Workload(ConvLayout layout)
      : layout_(layout),
        store_(resource_, conv_spec(layout), {.slots = slots_in_pool(conv_spec(layout))}),
        copier_(store_, store_) {
    fill_randomly(store_);
    slots_ = shuffled_slots(store_);
    rounds_ = slots_.size() / requests;
    for (const std::int32_t slot : slots_)
      plan_.push_back({.src_slot = slot, .dst_slot = slot, .conv_shift = 1, .recurrent_src_slot = -1});
  }

  void shift(int round) {
    copier_.copy_shifted(Stream::default_stream(), std::span(plan_).subspan(first(round), requests));
  }
  void memmove_shift(int round) const {
    const auto tensors = store_.tensors();
    const auto windows = static_cast<int>(requests * tensors.size());
    Kokkos::parallel_for("memmove_shift", Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(0, windows), [&](int i) {
      const auto index = static_cast<std::size_t>(i);
      const std::int32_t slot = slots_[first(round) + index / tensors.size()];
      shift_one(tensors[index % tensors.size()].slot_data(SlotId{slot}));
    });
  }
  /// Shifts one round's slots. Returns whether the windows equal those that memmove makes of the same bytes.
  [[nodiscard]] bool shifts_exactly() {
    const StateTensorView& tensor = store_.tensors()[7];
    std::byte* const data = tensor.slot_data(SlotId{slots_[first(0)]});
    std::vector<std::byte> expected(data, data + tensor.spec.natural_bytes());
    shift_one(expected.data());
    shift(0);
    return std::memcmp(expected.data(), data, expected.size()) == 0;
  }
  [[nodiscard]] double moved_bytes() const {
    const double kept = static_cast<double>(window - 1) / static_cast<double>(window);
    return 2.0 * requests * kept * static_cast<double>(store_.spec().slot_bytes());
  }

 private:
  [[nodiscard]] std::size_t first(int round) const { return static_cast<std::size_t>(round) % rounds_ * requests; }
  void shift_one(std::byte* data) const {
    const auto dim = static_cast<std::size_t>(conv_spec(layout_).tensors()[0].dim());
    constexpr auto kept = static_cast<std::size_t>(window - 1);
    if (layout_ == ConvLayout::sd) {
      std::memmove(data, data + dim * element, kept * dim * element);
      return;
    }
    for (std::size_t channel = 0; channel < dim; ++channel, data += window * element)
      std::memmove(data, data + element, kept * element);
  }

  ConvLayout layout_;
  DeviceResource resource_;
  StateStore store_;
  SlotCopier copier_;
  std::vector<std::int32_t> slots_;
  std::size_t rounds_ = 0;
  std::vector<SlotCopy> plan_;
};

void shift(benchmark::State& state, ConvLayout layout) {
  Workload workload(layout);
  report(state,
         {{"ours", [&](int round) { workload.shift(round); }},
          {"memmove", [&](int round) { workload.memmove_shift(round); }}},
         workload.moved_bytes());
  if (!workload.shifts_exactly()) state.SkipWithError("a window differs from that of memmove");
}
BENCHMARK_CAPTURE(shift, sd, ConvLayout::sd)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(shift, ds, ConvLayout::ds)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
