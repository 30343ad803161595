// SPDX-License-Identifier: Apache-2.0
#include "comparison.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace stateport::perf {

double wall_time_ns(const Contender& contender, int round) {
  const auto start = std::chrono::steady_clock::now();
  contender.run(round);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

namespace {

Timing summary(std::vector<double> samples) {
  std::ranges::sort(samples);
  const auto at = [&](double share) {
    return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {.median_ns = at(0.5), .p10_ns = at(0.1), .p90_ns = at(0.9)};
}

}  // namespace

int rounds_to_run(int rounds) {
  const char* asked = std::getenv("BENCHMARK_DRY_RUN");
  return asked != nullptr && std::string_view(asked) == "true" ? 1 : rounds;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

Comparison compare(const std::vector<Contender>& contenders, int rounds, const Timer& time_ns) {
  if (contenders.empty() || rounds < 1) throw std::invalid_argument("compare needs contenders and rounds");
  std::vector<std::vector<double>> samples(contenders.size());
  std::vector<double> again;
  rounds = rounds_to_run(rounds);
  int run = 0;
  for (int round = -1; round < rounds; ++round) {
    std::vector<double> times;
    for (const Contender& contender : contenders) times.push_back(time_ns(contender, run++));
    const double second = time_ns(contenders.front(), run++);
    if (round < 0) continue;
    for (std::size_t i = 0; i < times.size(); ++i) samples[i].push_back(times[i]);
    again.push_back(second);
  }
  Comparison result;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    result.names.push_back(contenders[i].name);
    result.timings.push_back(summary(samples[i]));
  }
  result.aa_spread = std::fabs(summary(again).median_ns / result.ours().median_ns - 1.0);
  return result;
}

Comparison report(benchmark::State& state, const std::vector<Contender>& contenders, double bytes, int rounds,
                  const Timer& time_ns) {
  Comparison result;
  for (auto _ : state) {
    result = compare(contenders, rounds, time_ns);
    state.SetIterationTime(result.ours().median_ns * 1e-9);
  }
  for (std::size_t i = 0; i < result.names.size(); ++i) {
    state.counters[result.names[i] + "_ns"] = result.timings[i].median_ns;
    if (i > 0) state.counters["ratio_to_" + result.names[i]] = result.timings[i].median_ns / result.ours().median_ns;
  }
  state.counters["p10_ns"] = result.ours().p10_ns;
  state.counters["p90_ns"] = result.ours().p90_ns;
  state.counters["aa_spread"] = result.aa_spread;
  if (bytes > 0) state.counters["GB_per_s"] = bytes / result.ours().median_ns;
  return result;
}

}  // namespace stateport::perf
