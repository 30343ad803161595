// SPDX-License-Identifier: Apache-2.0
// The cost of evictions beside floors of tenants for a scheduler: the plan of a prompt that evicts as many blocks of 16
// tokens as it takes, where eight ninths of the KV are within the floors of other tenants. Beside it the same cache
// without quotas. Medians, in microseconds.
#include <stateport/core/serve/request_cache.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t prompt_tokens = 2048;
constexpr std::int64_t state_bytes = 64;
constexpr std::int64_t prompt_bytes = prompt_tokens + state_bytes;
/// Prompts that are cached beside those within floors.
constexpr std::int32_t other_prompts(std::int32_t kept) {
  return kept / 8 + 8;
}
/// Floors must fit into the memory of states alone.
constexpr std::int32_t checkpoints_of(std::int32_t kept) {
  return static_cast<std::int32_t>((kept + 64) * prompt_bytes / state_bytes);
}

class Flood {
 public:
  /// `kept` prompts are of tenants with floors, all of them, or of one tenant without.
  Flood(CacheIndex index, EvictionOrder order, std::int32_t quotas, std::int32_t kept)
      : cache_(make_request_cache({.index = index,
                                   .layout = SlotLayout{.layout_fingerprint = 1, .checkpoints = checkpoints_of(kept)},
                                   .max_requests = 1,
                                   .max_request_tokens = prompt_tokens + 16,
                                   .block_size_tokens = 16,
                                   .kv_tokens = std::int64_t{kept + other_prompts(kept)} * prompt_tokens + 32,
                                   .eviction = order,
                                   .memory = {.state_bytes = state_bytes, .kv_bytes_per_token = 1},
                                   .tenant_quotas = quotas})) {
    const std::int32_t tenants = std::max(quotas, 1);
    for (std::int32_t i = 0; i < quotas; ++i)
      cache_->tenants()->set_quota({.salt = name_of(i), .floor_bytes = kept / tenants * prompt_bytes});
    for (std::int32_t i = 0; i < kept; ++i) static_cast<void>(serve(name_of(i % tenants)));
    for (std::int32_t i = 0; i < 2 * other_prompts(kept); ++i) static_cast<void>(serve({}));
    evicted_before_ = cache_->usage().evicted_kv_tokens;
  }

  /// Time of a plan that evicts.
  double serve_us() { return serve({}); }
  /// Evicted tokens of each prompt, in the mean.
  [[nodiscard]] double evicted_tokens(int prompts) const {
    return static_cast<double>(cache_->usage().evicted_kv_tokens - evicted_before_) / prompts;
  }

 private:
  static std::optional<NameKey> name_of(std::int32_t tenant) { return NameKey("tenant " + std::to_string(tenant)); }

  double serve(const std::optional<NameKey>& salt) {
    std::vector<Token> prompt(prompt_tokens);
    std::iota(prompt.begin(), prompt.end(), next_);
    next_ += prompt_tokens;
    now_s_ += 1;
    const auto started = cache_->start({.tokens = prompt, .name_space = {.salt = salt}, .now_s = now_s_});
    const PassRow row{.request = started->request, .tokens = prompt_tokens};
    PassPlan plan;
    const double plan_us = time_us([&] { plan = cache_->plan({&row, 1}); });
    constexpr std::int32_t sampled = 0;
    static_cast<void>(cache_->commit(plan.pass, {&sampled, 1}, {}));
    cache_->finish(started->request);
    return plan_us;
  }

  std::unique_ptr<RequestCache> cache_;
  Token next_ = 0;
  double now_s_ = 0;
  std::int64_t evicted_before_ = 0;
};

/// Arguments: a CacheIndex; an EvictionOrder; quotas; prompts within floors.
void plan_beside_floors(benchmark::State& state) {
  const int count = rounds_to_run(301);
  Flood flood(static_cast<CacheIndex>(state.range(0)), static_cast<EvictionOrder>(state.range(1)),
              static_cast<std::int32_t>(state.range(2)), static_cast<std::int32_t>(state.range(3)));
  std::vector<double> times;
  for ([[maybe_unused]] const auto iteration : state) {
    for (int round = 0; round < count; ++round) times.push_back(flood.serve_us());
    std::ranges::sort(times);
    state.SetIterationTime(times[times.size() / 2] * 1e-6);
  }
  state.counters["plan_us"] = times[times.size() / 2];
  state.counters["plan_p99_us"] = times[times.size() * 99 / 100];
  state.counters["evicted_tokens"] = flood.evicted_tokens(count);
}
BENCHMARK(plan_beside_floors)
    ->ArgNames({"tree", "order", "quotas", "kept"})
    ->ArgsProduct({{0, 1},
                   {static_cast<int>(EvictionOrder::lru), static_cast<int>(EvictionOrder::gdsf),
                    static_cast<int>(EvictionOrder::hix)},
                   {0, 2, 64},
                   {64, 1024}})
    ->Iterations(1)
    ->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
