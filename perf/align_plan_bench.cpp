// SPDX-License-Identifier: Apache-2.0
// B4: how long does the host take to plan one step of 512 requests? A plan names blocks, so that one SlotCopy stands
// for all tensors of its group: the 48 tensors (24 layers, conv and recurrent) are the launch's business. Limit: 50 µs.
#include <stateport/parts/align_planner.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t requests = 512;
constexpr std::int32_t drafts = 3;
constexpr std::int32_t block_size = 560;
constexpr std::int32_t columns = 64;

struct Step {
  std::vector<std::int32_t> request, computed, scheduled, drafts, sampled;
  std::vector<std::int32_t> ids;
  std::vector<BlockTable> tables;

  /// `crossing`: every request crosses a block boundary in the step, otherwise none does.
  Step(std::int32_t groups, bool crossing) : ids(requests * columns) {
    for (std::int32_t i = 0; i < requests; ++i) {
      request.push_back((i * 37) % requests);
      computed.push_back((i % 40 + 1) * block_size + (crossing ? -2 : 100));
      scheduled.push_back(1 + perf::drafts);
      drafts.push_back(perf::drafts);
      sampled.push_back(1 + perf::drafts);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) + 1;
    for (std::int32_t g = 0; g < groups; ++g) tables.push_back({ids, columns, columns});
  }
};

/// Arguments: number of groups, crossing.
void plan_step(benchmark::State& state) {
  const auto groups = static_cast<std::int32_t>(state.range(0));
  const bool crossing = state.range(1) != 0;
  const Step step(groups, crossing);
  AlignOptions options{.drafts = drafts, .max_requests = requests, .groups = {}};
  for (std::int32_t g = 0; g < groups; ++g)
    options.groups.push_back({.block_size_tokens = block_size, .blocks = requests * columns + 1, .conv_window = 6});
  AlignPlanner planner(options);
  const AlignBatch batch{step.request, step.computed, step.scheduled, step.drafts};
  std::int64_t copies = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (std::size_t i = 0; i < step.request.size(); ++i)
      planner.add_request(RequestIndex{step.request[i]}, step.computed[i]);
    state.ResumeTiming();
    copies = planner.pre_step(batch, step.tables).copies;
    planner.accept(step.request, step.sampled);
    copies += planner.post_step(batch, step.tables).copies;
    benchmark::DoNotOptimize(copies);
  }
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK(plan_step)->ArgNames({"groups", "crossing"})->ArgsProduct({{1, 4}, {0, 1}})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
