// SPDX-License-Identifier: Apache-2.0
// The cost of 64 forks of a request with 8,192 + 8 tokens for a scheduler: RequestCache::fork, the first plan and its
// commit. Beside it what engines do without forks: 64 requests start with the same tokens. Medians, in microseconds.
// Limit: 10 µs for fork().
#include <stateport/core/serve/request_cache.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t forks = 64;
constexpr std::int32_t prompt_tokens = 8200;

RequestCacheOptions options_of(CacheIndex index, bool in_columns) {
  RequestCacheOptions options{.index = index,
                              .max_requests = forks + 2,
                              .max_request_tokens = 16384,
                              .block_size_tokens = 16,
                              .kv_tokens = std::int64_t{forks + 2} * 8400};
  if (in_columns)
    options.layout =
        ColumnLayout{.groups = {{.block_size_tokens = 256, .blocks = 1000, .conv_window = 3, .layout_fingerprint = 1}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 1, .checkpoints = 2 * forks};
  return options;
}

class Rounds {
 public:
  explicit Rounds(const RequestCacheOptions& options) : cache_(make_request_cache(options)), prompt_(prompt_tokens) {
    std::iota(prompt_.begin(), prompt_.end(), 0);
  }

  /// Times of fork(), plan() and commit().
  std::array<double, 3> fork() {
    const std::array point = {serve_prompt()};
    std::vector<Token> next(forks);
    std::iota(next.begin(), next.end(), 0);
    std::vector<RequestId> started(forks);
    const double fork_us = time_us([&] { static_cast<void>(cache_->fork(point[0], next, started)); });
    const auto [plan_us, commit_us] = first_pass(started, 1);
    cache_->finish(point[0]);
    return {fork_us, plan_us, commit_us};
  }

  /// Times of start(), plan() and commit() of as many requests with the same tokens.
  std::array<double, 3> start() {
    cache_->finish(serve_prompt());
    std::vector<Token> tokens = prompt_;
    tokens.push_back(0);
    std::vector<RequestId> started;
    std::int32_t left = 0;
    const double start_us = time_us([&] {
      for (std::int32_t i = 0; i < forks; ++i) {
        tokens.back() = i;
        const auto request = cache_->start({.tokens = tokens});
        started.push_back(request->request);
        left = static_cast<std::int32_t>(std::ssize(tokens) - request->reused_tokens);
      }
    });
    const auto [plan_us, commit_us] = first_pass(started, left);
    return {start_us, plan_us, commit_us};
  }

 private:
  RequestId serve_prompt() {
    const auto started = cache_->start({.tokens = prompt_});
    const RequestId id = started->request;
    while (cache_->computed(id) < prompt_tokens) {
      const PromptChunk chunk = cache_->chunk(id, prompt_tokens - cache_->computed(id));
      run(std::array{PassRow{.request = id, .tokens = static_cast<std::int32_t>(chunk.tokens)}});
    }
    return id;
  }

  void run(std::span<const PassRow> rows) {
    const PassPlan plan = cache_->plan(rows);
    commit(plan, rows);
  }

  void commit(const PassPlan& plan, std::span<const PassRow> rows) {
    counts_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i)
      counts_.push_back(plan.rows[i].start + rows[i].tokens >= prompt_tokens ? 1 : 0);
    sampled_.assign(static_cast<std::size_t>(std::accumulate(counts_.begin(), counts_.end(), 0)), 7);
    static_cast<void>(cache_->commit(plan.pass, counts_, sampled_));
  }

  std::array<double, 2> first_pass(const std::vector<RequestId>& started, std::int32_t tokens) {
    std::vector<PassRow> rows;
    for (const RequestId id : started) rows.push_back({.request = id, .tokens = tokens});
    PassPlan plan;
    const double plan_us = time_us([&] { plan = cache_->plan(rows); });
    const double commit_us = time_us([&] { commit(plan, rows); });
    for (const RequestId id : started) cache_->finish(id);
    return {plan_us, commit_us};
  }

  std::unique_ptr<RequestCache> cache_;
  std::vector<Token> prompt_;
  std::vector<std::int32_t> counts_;
  std::vector<Token> sampled_;
};

/// Arguments: a CacheIndex; whether the layout is in columns.
void fork_64(benchmark::State& state) {
  const int count = rounds_to_run(31);
  Rounds rounds(options_of(static_cast<CacheIndex>(state.range(0)), state.range(1) != 0));
  static_cast<void>(rounds.fork());  // rows of this length
  static_cast<void>(rounds.start());
  std::array<std::vector<double>, 6> times;
  for ([[maybe_unused]] const auto iteration : state) {
    for (int round = 0; round < count; ++round) {
      const auto forked = rounds.fork();
      const auto begun = rounds.start();
      for (std::size_t i = 0; i < 3; ++i) {
        times[i].push_back(forked[i]);
        times[3 + i].push_back(begun[i]);
      }
    }
    state.SetIterationTime(median(times[0]) * 1e-6);
  }
  constexpr std::array names = {"fork_us",  "fork_plan_us",  "fork_commit_us",
                                "start_us", "start_plan_us", "start_commit_us"};
  for (std::size_t i = 0; i < times.size(); ++i) state.counters[names[i]] = median(times[i]);
}
BENCHMARK(fork_64)->ArgNames({"tree", "columns"})->ArgsProduct({{0, 1}, {0, 1}})->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
