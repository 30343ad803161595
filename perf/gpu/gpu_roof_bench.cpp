// SPDX-License-Identifier: Apache-2.0
// How near do shapes of copy kernels, and the library's, come to the speed of the memory? The chunks of G1 and G2, from
// cold caches, in device time, every byte compared. It has no goal: a faster shape should go into the kernels.
#include <stateport/backends/stream.hpp>

#include "comparison.hpp"
#include "device_comparison.hpp"
#include "roof_kernels.hpp"
#include "slot_workload.hpp"

#include <benchmark/benchmark.h>

#include <vector>

namespace stateport::perf {
namespace {

/// `range(0)` whole states.
void shapes(benchmark::State& state) {
  const Stream stream = Stream::create();
  const StateSpec spec = layers_of_two_tensors();
  const auto requests = static_cast<std::int32_t>(state.range(0));
  CopyWorkload workload(spec, requests, disjoint_rounds * 2 * static_cast<std::size_t>(requests) * spec.slot_bytes());
  std::vector<std::vector<PeerCopy>> copies;
  std::vector<std::vector<WrittenRange>> written;
  for (int round = 0; round < workload.rounds(); ++round) {
    copies.push_back(roof_copies(workload.chunks(round)));
    written.push_back(destinations(workload.chunks(round)));
  }
  std::vector<Contender> contenders{{"ours", [&](int round) { workload.run(round, stream); }}};
  for (std::size_t i = 0; i < copies[0].size(); ++i)
    contenders.push_back({copies[0][i].name, [&, i](int round) {
                            copies[static_cast<std::size_t>(round) % copies.size()][i].run(stream);
                          }});
  RoundChecks checks(std::move(written));
  ContiguousCopy limit(limit_bytes());
  report_limited(state, stream, contenders, workload.moved_bytes(), checks, limit);
}
BENCHMARK(shapes)->Name("roof")->Arg(1)->Arg(4)->Arg(16)->Arg(32)->UseManualTime()->Iterations(1)->Unit(
    benchmark::kMicrosecond);

}  // namespace
}  // namespace stateport::perf
