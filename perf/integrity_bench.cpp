// SPDX-License-Identifier: Apache-2.0
// What do checks of checkpoints cost? Peer in the same run and over the same slots: the same copies without checks.
// Goal for copies that are summed on the way: >= 0.9 of the peer. `apart`: the same checks beside the plain copies,
// whose states are read once more. `sums`: those alone.
#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "slot_workload.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::perf {
namespace {

const models::ModelInfo& model() {
  return models::info("qwen3-next-80b-a3b");
}

/// As many layers of the model as let two rounds of so many copies fit into the pool.
StateSpec spec_of(std::int32_t copies, ElementType recurrent = ElementType::fp32) {
  RecurrentShape shape = model().recurrent;
  shape.type = ElementType::fp32;
  const std::size_t layer_bytes = StateSpec::uniform(1, model().conv, shape).slot_bytes();
  const auto fits = static_cast<std::int32_t>(pool_bytes / (4 * static_cast<std::size_t>(copies) * layer_bytes));
  shape.type = recurrent;
  return StateSpec::uniform(std::clamp(fits, 1, model().state_layers), model().conv, shape);
}

/// States and their checkpoints. Each round copies other slots.
class CheckedCopies {
 public:
  CheckedCopies(std::int32_t copies, StateCheck::Kind kind, ElementType kept_type = ElementType::fp32)
      : copies_(static_cast<std::size_t>(copies)),
        kind_(kind),
        live_(resource_, spec_of(copies), {.slots = 2 * copies}),
        kept_(resource_, spec_of(copies, kept_type), {.slots = 2 * copies}),
        integrity_(std::vector{&kept_}, {.checks_max = 4 * copies}) {
    fill_randomly(live_);
    std::vector<StateCheck> checks;
    for (const std::int32_t slot : shuffled_slots(live_)) {
      plan_.push_back(SlotCopy::whole(slot, slot));
      checks_.push_back({.kind = kind, .slot = SlotId{slot}, .content = 1, .request = RequestId{1}});
      checks.push_back({.kind = StateCheck::Kind::published, .slot = SlotId{slot}, .content = 1});
    }
    save_.copy_slots(stream_, plan_);
    integrity_.begin(stream_, checks);
    integrity_.end(stream_);
    poll();
  }

  void summed(int round) {
    integrity_.begin(stream_, part(checks_, round));
    integrity_.copy_slots(stream_, copier(), part(plan_, round));
    integrity_.end(stream_);
    poll();
  }
  void apart(int round) {
    integrity_.begin(stream_, part(checks_, round));
    plain(round);
    integrity_.end(stream_);
    poll();
  }
  void sums(int round) {
    integrity_.begin(stream_, part(checks_, round));
    integrity_.end(stream_);
    poll();
  }
  void plain(int round) { copier().copy_slots(stream_, part(plan_, round)); }

  [[nodiscard]] double moved_bytes() const {
    return static_cast<double>(copies_) * static_cast<double>(live_.spec().slot_bytes() + kept_.spec().slot_bytes());
  }
  /// Whether no check found bytes that changed. Random bits have infinities and NaN.
  [[nodiscard]] bool unchanged() const { return unchanged_; }

 private:
  [[nodiscard]] SlotCopier& copier() { return kind_ == StateCheck::Kind::published ? save_ : load_; }
  template <class T>
  [[nodiscard]] std::span<const T> part(const std::vector<T>& all, int round) const {
    return std::span(all).subspan(static_cast<std::size_t>(round % 2) * copies_, copies_);
  }
  void poll() {
    integrity_.wait(stream_);
    for (const StateFault& fault : integrity_.poll())
      unchanged_ = unchanged_ && fault.kind == StateFault::Kind::not_finite;
  }

  DeviceResource resource_;
  Stream stream_ = Stream::default_stream();
  std::size_t copies_;
  StateCheck::Kind kind_;
  StateStore live_;
  StateStore kept_;
  SlotCopier save_{live_, kept_};
  SlotCopier load_{kept_, live_};
  StateIntegrity integrity_;
  std::vector<SlotCopy> plan_;
  std::vector<StateCheck> checks_;
  bool unchanged_ = true;
};

void compare_all(benchmark::State& state, std::int32_t count, StateCheck::Kind kind,
                 ElementType kept = ElementType::fp32) {
  CheckedCopies copies(count, kind, kept);
  report(state,
         {{"ours", [&](int round) { copies.summed(round); }},
          {"plain", [&](int round) { copies.plain(round); }},
          {"apart", [&](int round) { copies.apart(round); }},
          {"sums", [&](int round) { copies.sums(round); }}},
         copies.moved_bytes(), 31);
  if (!copies.unchanged()) state.SkipWithError("a check found bytes that did not change");
}

void restores(benchmark::State& state) {
  compare_all(state, static_cast<std::int32_t>(state.range(0)), StateCheck::Kind::read);
}
void checkpoints(benchmark::State& state) {
  compare_all(state, static_cast<std::int32_t>(state.range(0)), StateCheck::Kind::published);
}
BENCHMARK(restores)->Arg(1)->Arg(16)->Arg(64)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(checkpoints)->Arg(1)->Arg(16)->Arg(64)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

/// Checkpoints of another type are summed by themselves.
void converted(benchmark::State& state, ElementType kept) {
  compare_all(state, 4, StateCheck::Kind::published, kept);
}
BENCHMARK_CAPTURE(converted, bf16, ElementType::bf16)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(converted, int8_block32, ElementType::int8_block32)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
