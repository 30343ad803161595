// SPDX-License-Identifier: Apache-2.0
// Is taking over the states of accepted drafts as fast as memcpy by as many threads, each state and tensor a chunk? And
// the cost of a batch in which hardly any request takes one. On a GPU: gpu_step_bench.
#include <stateport/backends/transfer.hpp>

#include "commit_workload.hpp"
#include "comparison.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

namespace stateport::perf {
namespace {

void memcpy_per_chunk(const std::vector<Chunk>& chunks) {
  Kokkos::parallel_for("memcpy_per_chunk",
                       Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(0, static_cast<int>(chunks.size())),
                       [&](int i) {
                         const Chunk& chunk = chunks[static_cast<std::size_t>(i)];
                         std::memcpy(chunk.dst, chunk.src, chunk.bytes);
                       });
}

bool commits_exactly(CommitWorkload& workload, const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) std::memset(chunk.dst, 0xA5, chunk.bytes);
  workload.run(Stream::default_stream());
  for (const Chunk& chunk : chunks)
    if (std::memcmp(chunk.dst, chunk.src, chunk.bytes) != 0) return false;
  return true;
}

/// 64 requests of 12 layers, `range(0)` of them idle: 210 MiB are written when none is.
void commits(benchmark::State& state) {
  CommitWorkload workload(
      {.requests = 64, .layers = 12, .steps = 4, .idle = static_cast<std::int32_t>(state.range(0))});
  const std::vector<Chunk> chunks = workload.chunks();
  if (!commits_exactly(workload, chunks)) return state.SkipWithError("a live slot holds other bytes than its step");
  report(state,
         {{"ours", [&](int) { workload.run(Stream::default_stream()); }},
          {"memcpy", [&](int) { memcpy_per_chunk(chunks); }}},
         workload.moved_bytes());
}
BENCHMARK(commits)
    ->Name("commit_step")
    ->ArgName("idle")
    ->Arg(0)
    ->Arg(63)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
