// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stateport::perf {

/// One way of doing the work of a benchmark. `run(round)` does it once; rounds rotate over disjoint buffers so that
/// caches stay cold.
struct Contender {
  std::string name;
  std::function<void(int round)> run;
};

/// Runs a contender once and returns how long that took, in ns.
using Timer = std::function<double(const Contender&, int round)>;
/// From the call to its return.
[[nodiscard]] double wall_time_ns(const Contender& contender, int round);

struct Timing {
  double median_ns = 0;
  double p10_ns = 0;
  double p90_ns = 0;
};

/// Timings of all contenders, taken in one process and interleaved: A B C A' B C A …, so that a disturbance of the
/// machine affects them alike. The first contender ("ours") runs twice a round; the difference between its two series
/// is the spread that any ratio must exceed to mean something.
struct Comparison {
  std::vector<std::string> names;
  std::vector<Timing> timings;
  double aa_spread = 0;  ///< |median A' / median A - 1|

  [[nodiscard]] const Timing& ours() const { return timings.front(); }
};

/// `rounds`; 1 where BENCHMARK_DRY_RUN=true, the environment variable of Google Benchmark's option, asks whether the
/// benchmark runs at all.
[[nodiscard]] int rounds_to_run(int rounds);

/// Of an even number the upper one. Precondition: there are values. O(n).
[[nodiscard]] double median(std::vector<double> values);

/// Wall time of a call, in microseconds.
template <class Call>
[[nodiscard]] double time_us(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

/// rounds_to_run(rounds) measured rounds after one that warms up. Throws std::invalid_argument without contenders.
[[nodiscard]] Comparison compare(const std::vector<Contender>& contenders, int rounds = 15,
                                 const Timer& time_ns = wall_time_ns);

/// Runs the comparison once as a Google Benchmark and fills its counters: <name>_ns for every contender,
/// ratio_to_<name> = its median / ours (above 1: we are faster), p10_ns, p90_ns and aa_spread of ours; with `bytes`
/// (read + written by one run) also GB_per_s of ours. Returns the comparison.
Comparison report(benchmark::State& state, const std::vector<Contender>& contenders, double bytes = 0, int rounds = 15,
                  const Timer& time_ns = wall_time_ns);

}  // namespace stateport::perf
