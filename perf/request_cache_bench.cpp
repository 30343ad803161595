// SPDX-License-Identifier: Apache-2.0
// R1: the cost of a decode step of 256 requests for a scheduler: RequestCache::plan and commit, without events, against
// the calls of the classes below it by hand. Blocks of 256 tokens; one group of 48 tensors counts as one, since a plan
// names slots. A time is the mean of a step over the life of the requests, in which each passes one to six blocks.
// Limits: 10 µs in slots, 25 µs in columns with drafts. A step must not allocate.
#include <stateport/core/serve/request_cache.hpp>

#include "comparison.hpp"
#include "decode_workload.hpp"
#include "heap_counter.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <vector>

namespace stateport::perf {
namespace {

/// A scheduler is one thread: time that other programs take of the machine is not its own.
double cpu_time_ns(const Contender& contender, int round) {
  const std::clock_t start = std::clock();
  contender.run(round);
  return static_cast<double>(std::clock() - start) * (1e9 / CLOCKS_PER_SEC);
}

void live(DecodeWorkload& workload) {
  for (std::int32_t i = 0; i < DecodeShape::steps; ++i) workload.step();
}

/// Arguments: a DecodeCache, drafts.
void decode_step(benchmark::State& state) {
  const DecodeShape shape{.cache = static_cast<DecodeCache>(state.range(0)),
                          .drafts = static_cast<std::int32_t>(state.range(1))};
  const std::unique_ptr<DecodeWorkload> ours = decode_with_request_cache(shape);
  const std::unique_ptr<DecodeWorkload> by_hand = decode_by_hand(shape);
  // Rows of every length that will come, and every list of a step.
  for (DecodeWorkload* workload : {ours.get(), by_hand.get()})
    for (int warm = 0; warm < 2; ++warm) {
      workload->start();
      live(*workload);
    }
  const std::vector<Contender> contenders = {{"ours", [&](int) { live(*ours); }},
                                             {"by_hand", [&](int) { live(*by_hand); }}};
  std::uint64_t allocations = 0;
  report(state, contenders, 0, 15, [&](const Contender& contender, int round) {
    const bool is_ours = contender.name == "ours";
    (is_ours ? ours : by_hand)->start();
    const std::uint64_t before = test::heap_allocations();
    const double life_ns = cpu_time_ns(contender, round);
    if (is_ours) allocations += test::heap_allocations() - before;
    return life_ns / DecodeShape::steps;
  });
  state.counters["allocations"] = static_cast<double>(allocations);
}
BENCHMARK(decode_step)->ArgNames({"cache", "drafts"})->ArgsProduct({{0, 1, 2}, {0, 3}})->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
