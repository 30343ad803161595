// SPDX-License-Identifier: Apache-2.0
// C1, C2, C3: does copying many states at once run at the speed of the memory? Peers in the same run and over the same
// slots: std::memcpy per chunk on the same threads, Kokkos::deep_copy per chunk; limit: one contiguous copy of as many
// bytes (non-temporal for C1, memcpy for C2). C3 is `mix` of two runs, with one thread and with all.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace stateport::perf {
namespace {

using Space = Kokkos::DefaultExecutionSpace;

/// Each thread copies its share of the chunks, in order, as a careful engine would by hand.
void memcpy_per_chunk(const std::vector<Chunk>& chunks) {
  Kokkos::parallel_for("memcpy_per_chunk", Kokkos::RangePolicy<Space>(0, static_cast<int>(chunks.size())), [&](int i) {
    const Chunk& chunk = chunks[static_cast<std::size_t>(i)];
    std::memcpy(chunk.dst, chunk.src, chunk.bytes);
  });
}

void deep_copy_per_chunk(const std::vector<Chunk>& chunks) {
  using View = Kokkos::View<char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
  using ConstView = Kokkos::View<const char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
  for (const Chunk& chunk : chunks)
    Kokkos::deep_copy(View(reinterpret_cast<char*>(chunk.dst), chunk.bytes),
                      ConstView(reinterpret_cast<const char*>(chunk.src), chunk.bytes));
}

/// One contiguous range of as many bytes, as one tensor of a two-slot store: the kernel's own best case.
class ContiguousCopy {
 public:
  explicit ContiguousCopy(std::size_t bytes)
      : bytes_(bytes / 4096 * 4096), pools_(static_cast<int>(pool_bytes / (2 * bytes_))) {
    memory_ = Buffer(resource_, static_cast<std::size_t>(pools_) * 2 * bytes_);
    std::memset(memory_.data(), 0x3C, memory_.size_bytes());
    const StateTensorView tensor{
        .spec = {.type = ElementType::int8, .shape = {static_cast<std::int64_t>(bytes_), 1, 1}},
        .base = memory_.as<std::byte>(),
        .slot_stride_bytes = static_cast<std::int64_t>(bytes_)};
    store_.push_back(StateStore::view({&tensor, 1}, pools_ * 2));
    copier_.emplace(store_.front());
  }
  void nontemporal(int round) {
    const SlotCopy copy = SlotCopy::whole(round % pools_ * 2, round % pools_ * 2 + 1);
    copier_->copy_slots(Stream::default_stream(), {&copy, 1});
  }
  void memcpy_by_threads(int round) const {
    const int threads = Space().concurrency();
    std::byte* const base = store_.front().tensors()[0].slot_data(SlotId{round % pools_ * 2});
    const std::size_t share = bytes_ / static_cast<std::size_t>(threads);
    Kokkos::parallel_for("contiguous_memcpy", Kokkos::RangePolicy<Space>(0, threads), [&](int thread) {
      const std::size_t begin = static_cast<std::size_t>(thread) * share;
      std::memcpy(base + bytes_ + begin, base + begin, share);
    });
  }

 private:
  DeviceResource resource_;
  std::size_t bytes_;
  int pools_;
  Buffer memory_;
  std::vector<StateStore> store_;
  std::optional<SlotCopier> copier_;
};

void fail_unless_exact(benchmark::State& state, CopyWorkload& workload) {
  if (!workload.copies_exactly()) state.SkipWithError("a destination differs from its source");
}

/// C1: recurrent states of 1 MiB and more. Goal: >= 1.3x memcpy (fail below 1.1), >= 0.92 of the limit.
void large_chunks(benchmark::State& state) {
  const models::ModelInfo& model = models::info("qwen3.5-9b");
  CopyWorkload workload(StateSpec::uniform(model.state_layers, {}, model.recurrent),
                        static_cast<std::int32_t>(state.range(0)));
  ContiguousCopy contiguous(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report(state,
         {{"ours", [&](int round) { workload.run(round); }},
          {"memcpy", [&](int round) { memcpy_per_chunk(workload.chunks(round)); }},
          {"contiguous_nontemporal", [&](int round) { contiguous.nontemporal(round); }}},
         workload.moved_bytes());
  fail_unless_exact(state, workload);
}
BENCHMARK(large_chunks)
    ->Name("C1")
    ->RangeMultiplier(2)
    ->Range(1, 8)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

/// C2: conv states and small recurrent states, 10 … 80 KiB. Goal: >= 1.0x memcpy, >= 1.2x deep_copy per chunk.
void small_chunks(benchmark::State& state) {
  const std::int64_t dim = state.range(0) * 1024 / 6;  // window 3, 2 bytes
  CopyWorkload workload(StateSpec::uniform(48, {.window = 3, .dim = dim}, {}), 16);
  ContiguousCopy contiguous(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report(state,
         {{"ours", [&](int round) { workload.run(round); }},
          {"memcpy", [&](int round) { memcpy_per_chunk(workload.chunks(round)); }},
          {"deep_copy", [&](int round) { deep_copy_per_chunk(workload.chunks(round)); }},
          {"contiguous_memcpy", [&](int round) { contiguous.memcpy_by_threads(round); }}},
         workload.moved_bytes());
  fail_unless_exact(state, workload);
}
BENCHMARK(small_chunks)
    ->Name("C2")
    ->ArgName("KiB")
    ->Arg(10)
    ->Arg(20)
    ->Arg(48)
    ->Arg(80)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

/// Whole states of a model, conv and recurrent chunks together.
void whole_states(benchmark::State& state, const char* model) {
  const StateSpec spec = models::find(model);
  CopyWorkload workload(spec, std::clamp(slots_in_pool(spec) / 8, 1, 16));
  ContiguousCopy contiguous(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report(state,
         {{"ours", [&](int round) { workload.run(round); }},
          {"memcpy", [&](int round) { memcpy_per_chunk(workload.chunks(round)); }},
          {"contiguous_nontemporal", [&](int round) { contiguous.nontemporal(round); }}},
         workload.moved_bytes());
  fail_unless_exact(state, workload);
}

/// The same copies in memory with and without the advice to use huge pages.
void huge_pages(benchmark::State& state) {
  HostResource huge(HostResource::Options{.huge_pages = true});
  HostResource plain;
  const StateSpec spec = models::find("qwen3.5-9b");
  CopyWorkload ours(huge, spec, 4, pool_bytes / 2);
  CopyWorkload peer(plain, spec, 4, pool_bytes / 2);
  report(state, {{"ours", [&](int round) { ours.run(round); }}, {"small_pages", [&](int round) { peer.run(round); }}},
         ours.moved_bytes());
  fail_unless_exact(state, ours);
}
BENCHMARK(huge_pages)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

/// A step in which no request needs a copy, as planned for 512 requests and all tensors of a model.
void nothing_to_copy(benchmark::State& state) {
  DeviceResource resource;
  const StateStore store(resource, models::find("qwen3-next-80b-a3b"), {.slots = 4});
  SlotCopier copier(store);
  const std::vector<SlotCopy> plan(512);
  report(state, {{"ours", [&](int) { copier.copy_slots(Stream::default_stream(), plan); }}}, 0, 101);
}
BENCHMARK(nothing_to_copy)->Name("noop")->UseManualTime()->Iterations(1);

const bool registered = [] {
  for (const char* model : {"qwen3-next-80b-a3b", "qwen3.5-9b", "nemotron-h-8b-base", "nemotron-3-super-120b-a12b"})
    benchmark::RegisterBenchmark(std::string("mix/") + model, whole_states, model)
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace stateport::perf
