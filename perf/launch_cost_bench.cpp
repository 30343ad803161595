// SPDX-License-Identifier: Apache-2.0
// G10: the cost of a call for the thread that makes it, against a bare launch of a kernel without work that takes as
// many bytes of arguments. The source of three programs: gpu_launch_cost_bench, where a call only enqueues;
// launch_cost_bench, where the call of an OpenMP build also runs, on states so small that their bytes do not count; and
// stub_launch_cost_bench, the launches of GPUs run by host threads: the cost of a plan beside Kokkos' own launch, on
// any machine. Its figures for plans on the device and for steps are not the host's cost alone: their kernels look for
// work.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "bare_launch.hpp"
#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t rows_max = 16;

/// 16 bytes a state; slot i goes to slot rows_max + i.
struct SmallStates {
  DeviceResource resource;
  StateStore store{resource, StateSpec::uniform(1, {}, {.shape = {1, 1, 4}}), {.slots = 2 * rows_max}};
  SlotCopier copier{store};
  std::vector<SlotCopy> plan;
  SmallStates() {
    for (std::int32_t i = 0; i < rows_max; ++i) plan.push_back(SlotCopy::whole(i, rows_max + i));
  }
};

/// Median time of a call, several of them in a row on a stream that is idle before the first.
void report_host_cost(benchmark::State& state, const Stream& stream, const std::function<void()>& ours) {
  constexpr int calls = 16, rounds = 501;
  const BareArguments arguments{};
  report(state, {{"ours", [&](int) { ours(); }}, {"bare", [&](int) { launch_bare(stream, arguments); }}}, 0, rounds,
         [&](const Contender& contender, int round) {
           stream.synchronize();
           const auto repeat = [&](int first) {
             for (int i = 0; i < calls; ++i) contender.run(first + i);
           };
           return wall_time_ns({contender.name, repeat}, round) / calls;
         });
}

/// A plan of the host of `range(0)` rows: checked, and enqueued with its launch.
void host_plan(benchmark::State& state) {
  const Stream stream = Stream::create();
  SmallStates states;
  const CopyPlan plan = std::span(states.plan).first(static_cast<std::size_t>(state.range(0)));
  report_host_cost(state, stream, [&] { states.copier.copy_slots(stream, plan); });
}
BENCHMARK(host_plan)->Name("G10/plan")->Arg(1)->Arg(rows_max)->UseManualTime()->Iterations(1);

/// A plan of 16 rows that lies in device memory.
void device_plan(benchmark::State& state) {
  const Stream stream = Stream::create();
  SmallStates states;
  const Buffer plan = detail::upload(states.resource, states.plan);
  report_host_cost(state, stream, [&] { states.copier.copy_slots_on_device(stream, plan.as<SlotCopy>(), rows_max); });
}
BENCHMARK(device_plan)->Name("G10/device_plan")->UseManualTime()->Iterations(1);

/// A pre-step of 16 requests in the middle of their blocks.
void align_step(benchmark::State& state) {
  const Stream stream = Stream::create();
  SmallStates states;
  AlignContext context({.max_requests = rows_max, .groups = {{.block_size_tokens = 16, .blocks = 2 * rows_max}}});
  std::vector<std::int32_t> requests;
  for (std::int32_t i = 0; i < rows_max; ++i) requests.push_back(i);
  const Buffer table = detail::upload(states.resource, std::vector<std::int32_t>(2 * rows_max, 1));
  const Buffer request = detail::upload(states.resource, requests);
  const Buffer computed = detail::upload(states.resource, std::vector<std::int32_t>(rows_max, 5));
  const Buffer scheduled = detail::upload(states.resource, std::vector<std::int32_t>(rows_max, 1));
  const AlignBinding binding{
      .states = &states.store, .block_table = table.as<std::int32_t>(), .row_stride = 2, .columns = 2};
  context.bind({&binding, 1});
  for (const std::int32_t id : requests) context.add_request(stream, RequestIndex{id}, 5);
  const AlignDeviceBatch batch{.request = request.as<std::int32_t>(),
                               .computed = computed.as<std::int32_t>(),
                               .scheduled = scheduled.as<std::int32_t>(),
                               .rows = rows_max};
  report_host_cost(state, stream, [&] { context.pre_step(stream, batch); });
}
BENCHMARK(align_step)->Name("G10/align")->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace stateport::perf
