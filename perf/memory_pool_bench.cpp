// SPDX-License-Identifier: Apache-2.0
// What does an allocation from a warm PoolResource cost? Peer in the same run, over the same sequence of sizes: the C++
// heap through HostResource. The heap stands for no device: cudaMalloc and hipMalloc take microseconds to milliseconds.
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/pool_resource.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t live_blocks = 64;
constexpr std::size_t calls = 20'000;  ///< pairs of deallocate and allocate in one run

/// A full set of live blocks of which a random one is exchanged, over and over. Sizes are spread evenly over the
/// powers of two between `least` and `most`.
class Sequence {
 public:
  Sequence(std::size_t least_bytes, std::size_t most_bytes) {
    std::mt19937_64 random(1);
    const double octaves = std::log2(static_cast<double>(most_bytes) / static_cast<double>(least_bytes));
    for (std::size_t i = 0; i < calls; ++i) {
      const double octave = octaves * static_cast<double>(random() % 10'000) / 10'000;
      victims_.push_back(random() % live_blocks);
      bytes_.push_back(static_cast<std::size_t>(static_cast<double>(least_bytes) * std::exp2(octave)));
    }
  }

  void run(MemoryResource& resource) const {
    const Stream stream = Stream::default_stream();
    std::vector<void*> live(live_blocks, nullptr);
    std::vector<std::size_t> held(live_blocks, 0);
    for (std::size_t i = 0; i < calls; ++i) {
      const std::size_t victim = victims_[i];
      resource.deallocate(live[victim], held[victim], MemoryResource::default_alignment, stream);
      live[victim] = resource.allocate(bytes_[i], MemoryResource::default_alignment, stream);
      held[victim] = bytes_[i];
      benchmark::DoNotOptimize(live[victim]);
    }
    for (std::size_t i = 0; i < live_blocks; ++i)
      resource.deallocate(live[i], held[i], MemoryResource::default_alignment, stream);
  }

 private:
  std::vector<std::size_t> victims_;
  std::vector<std::size_t> bytes_;
};

void exchange(benchmark::State& state) {
  const Sequence sequence(static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)));
  HostResource heap;
  HostResource upstream;
  PoolResource pool(upstream);
  const Comparison result =
      report(state, {{"pool", [&](int) { sequence.run(pool); }}, {"heap", [&](int) { sequence.run(heap); }}});
  state.counters["ns_per_pair"] = result.ours().median_ns / static_cast<double>(calls);
}
BENCHMARK(exchange)
    ->ArgNames({"least_bytes", "most_bytes"})
    ->Args({256, 16 << 10})
    ->Args({64 << 10, 4 << 20})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
