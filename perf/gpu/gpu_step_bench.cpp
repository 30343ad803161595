// SPDX-License-Identifier: Apache-2.0
// G3, G9: the cost of a step's launches on a GPU, beside the bytes that they move. Steps without work against an empty
// kernel, steps in which one row of fifty has work, align steps at whose boundaries states are copied, and commits of
// accepted drafts. Peers and limits as in gpu_copy_bench.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "commit_workload.hpp"
#include "comparison.hpp"
#include "device_comparison.hpp"
#include "device_graph.hpp"
#include "device_time.hpp"
#include "peers.hpp"
#include "round_checks.hpp"
#include "slot_workload.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace stateport::perf {
namespace {

using test::DeviceGraph;

constexpr std::int32_t step_requests = 512;

/// Both from a graph.
void report_step_without_work(benchmark::State& state, const Stream& stream, const std::function<void()>& step) {
  step();
  stream.synchronize();
  const DeviceGraph ours(stream, step);
  const DeviceGraph empty(stream, [&] { launch_empty_kernel(stream); });
  report_beside_empty(
      state, stream, [&] { ours.launch(stream); }, [&] { empty.launch(stream); });
}

/// G3: a plan on the device of 512 rows without work.
void nothing_to_copy(benchmark::State& state) {
  const Stream stream = Stream::create();
  DeviceResource resource;
  const StateStore store(resource, layers_of_two_tensors(), {.slots = 2});
  SlotCopier copier(store, store);
  const Buffer plan = detail::upload(resource, std::vector<SlotCopy>(step_requests));
  report_step_without_work(state, stream,
                           [&] { copier.copy_slots_on_device(stream, plan.as<SlotCopy>(), step_requests); });
}
BENCHMARK(nothing_to_copy)->Name("G3/plan")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// Requests of align mode whose states cross into the next block in their next pre-step, or stay where they are. Block
/// tables of two columns, a table for each round.
class AlignSteps {
 public:
  AlignSteps(std::int32_t requests, std::int32_t rounds, std::int32_t computed)
      : requests_(requests),
        computed_(computed),
        store_(resource_, layers_of_two_tensors(), {.slots = 1 + 2 * requests * rounds}),
        context_({.max_requests = requests,
                  .groups = {{.block_size_tokens = block_tokens, .blocks = store_.slots(), .conv_window = 4}}}) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < requests; ++i) ids.push_back(i);
    for (std::int32_t block = 1; block < store_.slots(); ++block) blocks_.push_back(block);
    const auto count = static_cast<std::size_t>(requests);
    tables_ = detail::upload(resource_, blocks_);
    table_ = Buffer(resource_, table_bytes());
    request_ = detail::upload(resource_, ids);
    device_computed_ = detail::upload(resource_, std::vector<std::int32_t>(count, computed));
    scheduled_ = detail::upload(resource_, std::vector<std::int32_t>(count, 1));
    const AlignBinding binding{
        .states = &store_, .block_table = table_.as<std::int32_t>(), .row_stride = 2, .columns = 2};
    context_.bind({&binding, 1});
    fill_randomly(store_);
  }
  /// Puts requests and tables to where they are before the step.
  void prepare(const Stream& stream, int round) {
    copy_bytes(stream, table_.data(), tables_.as<std::byte>() + table_bytes() * index(round), table_bytes());
    for (std::int32_t i = 0; i < requests_; ++i) context_.add_request(stream, RequestIndex{i}, computed_);
  }
  void step(const Stream& stream) {
    context_.pre_step(stream, {.request = request_.as<std::int32_t>(),
                               .computed = device_computed_.as<std::int32_t>(),
                               .scheduled = scheduled_.as<std::int32_t>(),
                               .rows = requests_});
  }
  /// The copies of a step that crosses a boundary.
  [[nodiscard]] std::vector<Chunk> chunks(int round) const {
    std::vector<Chunk> result;
    for (std::size_t row = 0; row < static_cast<std::size_t>(requests_); ++row) {
      const std::size_t at = 2 * (index(round) * static_cast<std::size_t>(requests_) + row);
      for (const StateTensorView& tensor : store_.tensors())
        result.push_back({tensor.slot_data(SlotId{blocks_[at + 1]}), tensor.slot_data(SlotId{blocks_[at]}),
                          tensor.spec.natural_bytes()});
    }
    return result;
  }
  [[nodiscard]] double moved_bytes() const { return 2.0 * requests_ * static_cast<double>(store_.spec().slot_bytes()); }

  static constexpr std::int32_t block_tokens = 16;

 private:
  [[nodiscard]] std::size_t table_bytes() const {
    return 2 * sizeof(std::int32_t) * static_cast<std::size_t>(requests_);
  }
  [[nodiscard]] std::size_t index(int round) const {
    return static_cast<std::size_t>(round) % (blocks_.size() / 2 / static_cast<std::size_t>(requests_));
  }

  std::int32_t requests_, computed_;
  DeviceResource resource_;
  StateStore store_;
  AlignContext context_;
  std::vector<std::int32_t> blocks_;  ///< [rounds, requests, 2]
  Buffer tables_, table_, request_, device_computed_, scheduled_;
};

/// G3: an align step of 512 requests in the middle of their blocks. A block of each would be 50 GiB: all have the same.
void nothing_to_align(benchmark::State& state) {
  const Stream stream = Stream::create();
  DeviceResource resource;
  const StateStore store(resource, layers_of_two_tensors(), {.slots = 2});
  AlignContext context({.max_requests = step_requests,
                        .groups = {{.block_size_tokens = AlignSteps::block_tokens, .blocks = 2, .conv_window = 4}}});
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < step_requests; ++i) ids.push_back(i);
  const Buffer table = detail::upload(resource, std::vector<std::int32_t>(step_requests, 1));
  const Buffer request = detail::upload(resource, ids);
  const Buffer computed = detail::upload(resource, std::vector<std::int32_t>(step_requests, 5));
  const Buffer scheduled = detail::upload(resource, std::vector<std::int32_t>(step_requests, 1));
  const AlignBinding binding{.states = &store, .block_table = table.as<std::int32_t>(), .row_stride = 1, .columns = 1};
  context.bind({&binding, 1});
  for (const std::int32_t id : ids) context.add_request(stream, RequestIndex{id}, 5);
  report_step_without_work(state, stream, [&] {
    context.pre_step(stream, {.request = request.as<std::int32_t>(),
                              .computed = computed.as<std::int32_t>(),
                              .scheduled = scheduled.as<std::int32_t>(),
                              .rows = step_requests});
  });
}
BENCHMARK(nothing_to_align)->Name("G3/align")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// A plan on the device of 512 rows, of which every fiftieth has work: 11 states.
void few_rows_with_work(benchmark::State& state) {
  constexpr std::int32_t working = (step_requests + 49) / 50;
  const Stream stream = Stream::create();
  CopyWorkload workload(layers_of_two_tensors(), working,
                        2 * disjoint_rounds * static_cast<std::size_t>(working) * layers_of_two_tensors().slot_bytes());
  SlotCopier copier(workload.store());
  DeviceResource resource;
  std::vector<Buffer> plans;
  std::vector<std::vector<WrittenRange>> written;
  for (int round = 0; round < workload.rounds(); ++round) {
    std::vector<SlotCopy> rows(step_requests);
    for (std::size_t i = 0; i < workload.plan(round).size(); ++i) rows[50 * i] = workload.plan(round)[i];
    plans.push_back(detail::upload(resource, rows));
    written.push_back(destinations(workload.chunks(round)));
  }
  RoundChecks checks(std::move(written));
  ContiguousCopy limit(limit_bytes());
  const auto copy = [&](int round) {
    const Buffer& plan = plans[static_cast<std::size_t>(round) % plans.size()];
    copier.copy_slots_on_device(stream, plan.as<SlotCopy>(), step_requests);
  };
  report_limited(state, stream, {{"ours", copy}}, workload.moved_bytes(), checks, limit);
}
BENCHMARK(few_rows_with_work)->Name("idle_98")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// An align step in which `range(0)` requests enter their next block: each state is copied there.
void boundaries(benchmark::State& state) {
  const Stream stream = Stream::create();
  AlignSteps steps(static_cast<std::int32_t>(state.range(0)), disjoint_rounds, AlignSteps::block_tokens);
  std::vector<std::vector<WrittenRange>> written;
  std::vector<PeerCopy> twins;
  for (int round = 0; round < disjoint_rounds; ++round) {
    written.push_back(destinations(steps.chunks(round)));
    twins.push_back(peer_copies(steps.chunks(round)).back());
  }
  RoundChecks checks(std::move(written));
  ContiguousCopy limit(limit_bytes());
  report_limited(state, stream,
                 {{"ours", [&](int) { steps.step(stream); }},
                  {"twin", [&](int round) { twins[static_cast<std::size_t>(round % disjoint_rounds)].run(stream); }}},
                 steps.moved_bytes(), checks, limit, [&](int round) { steps.prepare(stream, round); });
  state.counters["beyond_twin_ns"] = state.counters["ours_ns"] - state.counters["twin_ns"];
}
BENCHMARK(boundaries)->Name("align")->Arg(1)->Arg(16)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// G9: 256 requests take over the states of accepted drafts in 48 layers: 3.4 GB read, as many written.
void commits(benchmark::State& state) {
  const Stream stream = Stream::create();
  CommitWorkload workload({.requests = sized(256, 5), .layers = sized(48, 2)});
  RoundChecks checks({destinations(workload.chunks())});
  const PeerCopy twin = peer_commit(workload);
  ContiguousCopy limit(limit_bytes());
  report_limited(state, stream,
                 {{"ours", [&](int) { workload.run(stream); }}, {twin.name, [&](int) { twin.run(stream); }}},
                 workload.moved_bytes(), checks, limit);
}
BENCHMARK(commits)->Name("G9")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stateport::perf
