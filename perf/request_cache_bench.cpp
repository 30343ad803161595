// SPDX-License-Identifier: Apache-2.0
// R1: what does a decode step of 256 requests cost a scheduler: RequestCache::plan and commit, without events? Blocks
// of 256 tokens; one group of 48 tensors counts as one, since a plan names slots. Limits: 10 µs for slots and tree, 25
// µs for align with drafts. A step must not allocate.
#include <stateport/core/serve/request_cache.hpp>

#include "heap_counter.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t requests = 256;
constexpr std::int32_t block_size = 256;
constexpr std::int32_t prompt_tokens = 1000;
constexpr std::int32_t steps_of_a_request = 400;

RequestCacheOptions options_of(CacheIndex index, std::int32_t drafts) {
  constexpr std::int32_t longest = prompt_tokens + steps_of_a_request * 4 + 8;
  RequestCacheOptions options{.index = index,
                              .max_requests = requests,
                              .max_request_tokens = longest,
                              .drafts = drafts,
                              .block_size_tokens = block_size,
                              .kv_tokens = std::int64_t{requests} * (longest + 2 * block_size),
                              .layout_fingerprint = 1,
                              .checkpoints = 2 * requests,
                              .decode_checkpoint_tokens = block_size};
  if (index == CacheIndex::align)
    options.groups = {{.block_size_tokens = block_size,
                       .blocks = requests * (4 + drafts),
                       .conv_window = 3 + drafts,
                       .layout_fingerprint = 1}};
  return options;
}

/// Requests that decode, one batch a step, until each has run its steps; then others take their place.
class Decode {
 public:
  Decode(CacheIndex index, std::int32_t drafts)
      : cache_(make_request_cache(options_of(index, drafts))), drafts_(drafts) {
    start();
  }

  [[nodiscard]] bool is_over() const { return steps_ == steps_of_a_request; }
  void start() {
    for (const PassRow& row : rows_) cache_->finish(row.request);
    rows_.clear();
    counts_.assign(requests, 1);
    sampled_.assign(requests, 7);
    std::vector<Token> prompt(prompt_tokens);
    for (std::int32_t i = 0; i < requests; ++i) {
      std::iota(prompt.begin(), prompt.end(), (++prompts_) * 10000);
      const auto started = cache_->start({.tokens = prompt});
      rows_.push_back(
          {.request = started->request, .tokens = static_cast<std::int32_t>(prompt_tokens - started->reused_tokens)});
    }
    step();
    for (PassRow& row : rows_) row = {.request = row.request, .tokens = 1 + drafts_, .drafts = drafts_};
    // Half of the drafts are kept.
    std::int32_t sum = 0;
    for (std::int32_t i = 0; i < requests; ++i)
      sum += counts_[static_cast<std::size_t>(i)] = 1 + (drafts_ > 0 ? i % (1 + drafts_) : 0);
    sampled_.assign(static_cast<std::size_t>(sum), 7);
    steps_ = 0;
  }
  void step() {
    const PassPlan plan = cache_->plan(rows_);
    if (plan.rows_without_room > 0) std::abort();
    benchmark::DoNotOptimize(cache_->commit(plan.pass, counts_, sampled_));
    ++steps_;
  }

 private:
  std::unique_ptr<RequestCache> cache_;
  std::int32_t drafts_;
  std::int32_t steps_ = 0;
  std::int32_t prompts_ = 0;
  std::vector<PassRow> rows_;
  std::vector<std::int32_t> counts_;
  std::vector<Token> sampled_;
};

/// Arguments: index (0 slots, 1 tree, 2 align), drafts.
void decode_step(benchmark::State& state) {
  Decode decode(static_cast<CacheIndex>(state.range(0)), static_cast<std::int32_t>(state.range(1)));
  // Rows of every length that will come, and every list of a step.
  for (int warm = 0; warm < 2; ++warm) {
    while (!decode.is_over()) decode.step();
    decode.start();
  }
  std::uint64_t allocations = 0;
  for (auto _ : state) {
    if (decode.is_over()) {
      state.PauseTiming();
      decode.start();
      state.ResumeTiming();
    }
    const std::uint64_t before = test::heap_allocations();
    decode.step();
    allocations += test::heap_allocations() - before;
  }
  state.counters["allocations"] = static_cast<double>(allocations);
}
BENCHMARK(decode_step)->Args({0, 0})->Args({1, 0})->Args({2, 0})->Args({0, 3})->Args({1, 3})->Args({2, 3});

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
