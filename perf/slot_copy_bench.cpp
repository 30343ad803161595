// SPDX-License-Identifier: Apache-2.0
// C1, C2, C3: does copying many states at once run at the speed of the memory? Peers in the same run and over the same
// slots: std::memcpy per chunk on the same threads, Kokkos::deep_copy per chunk; limit: one contiguous copy of as many
// bytes (non-temporal for C1, memcpy for C2).
#include <Kokkos_Core.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/core/models.hpp>
#include <stateport/kernels/state_store.hpp>

#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "comparison.hpp"

namespace stateport::perf {
namespace {

constexpr std::size_t pool_bytes = std::size_t{2} << 30;

struct Chunk {
  std::byte* dst;
  const std::byte* src;
  std::size_t bytes;
};

/// A store of 2 GiB of random data and, per round, a plan over slots that no recent round touched.
class Workload {
 public:
  Workload(const StateSpec& spec, std::int32_t requests)
      : store_(resource_, spec, {.slots = static_cast<std::int32_t>(pool_bytes / spec.slot_bytes())}) {
    std::mt19937_64 random(1);
    for (const StateTensorView& tensor : store_.tensors()) {
      auto* const words = reinterpret_cast<std::uint64_t*>(tensor.base);
      const auto count =
          static_cast<std::size_t>(tensor.slot_stride_bytes) * static_cast<std::size_t>(store_.slots()) / 8;
      std::uint64_t value = random();
      for (std::size_t i = 0; i < count; ++i) words[i] = value = value * 6364136223846793005u + 1442695040888963407u;
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(store_.slots()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t next = 0; next + 2 * static_cast<std::size_t>(requests) <= order.size();) {
      std::vector<SlotCopy> plan;
      for (std::int32_t i = 0; i < requests; ++i, next += 2)
        plan.push_back(SlotCopy::whole(order[next], order[next + 1]));
      plans_.push_back(std::move(plan));
    }
  }

  [[nodiscard]] const std::vector<SlotCopy>& plan(int round) const {
    return plans_[static_cast<std::size_t>(round) % plans_.size()];
  }
  [[nodiscard]] std::vector<Chunk> chunks(int round) const {
    std::vector<Chunk> result;
    for (const SlotCopy& copy : plan(round))
      for (const StateTensorView& tensor : store_.tensors())
        result.push_back({tensor.slot_data(SlotId{copy.dst_slot}), tensor.slot_data(SlotId{copy.src_slot}),
                          tensor.spec.natural_bytes()});
    return result;
  }
  [[nodiscard]] const StateStore& store() const { return store_; }
  [[nodiscard]] double moved_bytes() const {
    return 2.0 * static_cast<double>(plan(0).size()) * static_cast<double>(store_.spec().slot_bytes());
  }

  /// Poisons a round's destinations, copies, and says whether every byte arrived.
  [[nodiscard]] bool copies_exactly() const {
    for (const Chunk& chunk : chunks(0)) std::memset(chunk.dst, 0xA5, chunk.bytes);
    store_.copy(Stream::default_stream(), plan(0));
    for (const Chunk& chunk : chunks(0))
      if (std::memcmp(chunk.dst, chunk.src, chunk.bytes) != 0) return false;
    return true;
  }

 private:
  DeviceResource resource_;
  StateStore store_;
  std::vector<std::vector<SlotCopy>> plans_;
};

using Space = Kokkos::DefaultExecutionSpace;

/// Each thread copies its share of the chunks, in order: what a careful engine writes by hand.
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
  }
  void nontemporal(int round) const {
    const SlotCopy copy = SlotCopy::whole(round % pools_ * 2, round % pools_ * 2 + 1);
    store_.front().copy(Stream::default_stream(), {&copy, 1});
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
};

void fail_unless_exact(benchmark::State& state, const Workload& workload) {
  if (!workload.copies_exactly()) state.SkipWithError("a destination differs from its source");
}

/// C1: recurrent states of 1 MiB and more. Goal: >= 1.3x memcpy (fail below 1.1), >= 0.92 of the limit.
void large_chunks(benchmark::State& state) {
  const models::ModelInfo& model = models::info("qwen3.5-9b");
  const Workload workload(StateSpec::uniform(model.state_layers, {}, model.recurrent),
                          static_cast<std::int32_t>(state.range(0)));
  const ContiguousCopy contiguous(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report(state,
         {{"ours", [&](int round) { workload.store().copy(Stream::default_stream(), workload.plan(round)); }},
          {"memcpy", [&](int round) { memcpy_per_chunk(workload.chunks(round)); }},
          {"contiguous_nontemporal", [&](int round) { contiguous.nontemporal(round); }}},
         workload.moved_bytes());
  fail_unless_exact(state, workload);
}
BENCHMARK(large_chunks)->Name("C1")->Arg(1)->Arg(4)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

/// C2: conv states and small recurrent states, 10 … 80 KiB. Goal: >= 1.0x memcpy, >= 1.2x deep_copy per chunk.
void small_chunks(benchmark::State& state) {
  const std::int64_t dim = state.range(0) * 1024 / 6;  // window 3, 2 bytes
  const Workload workload(StateSpec::uniform(48, {.window = 3, .dim = dim}, {}), 16);
  const ContiguousCopy contiguous(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report(state,
         {{"ours", [&](int round) { workload.store().copy(Stream::default_stream(), workload.plan(round)); }},
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

}  // namespace
}  // namespace stateport::perf
