// SPDX-License-Identifier: Apache-2.0
// main of the benchmarks that launch kernels: the runtime lives as long as they run. Without a device it says so and
// exits with 77 (skipped).
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>

#include <benchmark/benchmark.h>

#include <cstdio>
#include <optional>

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::optional<stateport::Runtime> runtime;
  try {
    runtime.emplace();
  } catch (const stateport::BackendError& error) {
    std::fprintf(stderr, "skipped: %s\n", error.what());
    return 77;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
