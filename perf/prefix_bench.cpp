// SPDX-License-Identifier: Apache-2.0
// The cost of a pin and of a prefetch of 8,192 tokens for a scheduler. Beside them requests with the same tokens: one
// that starts from the cached prefix and is aborted, which looks up and holds as much as a pin; and one whose prefix
// the host tier loads. No bytes move: transfers end at once. Medians, in microseconds.
#include <stateport/core/serve/cache_prefixes.hpp>
#include <stateport/core/serve/cache_tiers.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t prompt_tokens = 8192;

/// Room for two prompts, and for `tier_bytes` of images on the host.
RequestCacheOptions options_of(CacheIndex index, bool in_columns, std::int64_t tier_bytes) {
  RequestCacheOptions options{.index = index,
                              .max_requests = 4,
                              .max_request_tokens = prompt_tokens + 512,
                              .block_size_tokens = 16,
                              .kv_tokens = 2 * (prompt_tokens + 512),
                              .memory = {.state_bytes = 1000, .kv_bytes_per_token = 1}};
  if (in_columns)
    options.layout =
        ColumnLayout{.groups = {{.block_size_tokens = 256, .blocks = 90, .conv_window = 3, .layout_fingerprint = 1}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 1, .checkpoints = 8};
  options.prefixes = {.pins = 4, .pinned_bytes = 1 << 30};
  options.tiers.host_bytes = tier_bytes;
  if (tier_bytes > 0) options.prefixes.prefetches = 4, options.prefixes.prefetched_bytes = 1 << 30;
  return options;
}

class Server {
 public:
  explicit Server(const RequestCacheOptions& options) : cache_(make_request_cache(options)) {}

  [[nodiscard]] static std::vector<Token> prompt(std::int32_t number) {
    std::vector<Token> tokens(prompt_tokens);
    std::iota(tokens.begin(), tokens.end(), number * prompt_tokens);
    return tokens;
  }
  void serve(const std::vector<Token>& tokens) {
    const auto started = cache_->start({.tokens = tokens, .now_s = now(), .search = PromptSearch::device});
    const RequestId id = started->request;
    take(started->transfers);
    while (cache_->computed(id) < prompt_tokens) {
      const PromptChunk chunk = cache_->chunk(id, prompt_tokens - cache_->computed(id));
      const PassRow row{.request = id, .tokens = static_cast<std::int32_t>(chunk.tokens)};
      const PassPlan plan = cache_->plan({&row, 1});
      take(plan.transfers);
      const std::int32_t count = plan.rows[0].start + row.tokens == prompt_tokens ? 1 : 0;
      const Token token = 7;
      take(cache_->commit(plan.pass, {&count, 1}, {&token, static_cast<std::size_t>(count)}).transfers);
    }
    take(cache_->finish(id).transfers);
    settle();
  }
  /// Times of pin() and unpin().
  std::array<double, 2> pin(const std::vector<Token>& tokens) {
    PinnedPrefix pinned;
    const double pin_us = time_us([&] { pinned = cache_->prefixes()->pin({.tokens = tokens, .now_s = now()}); });
    if (pinned.pin == 0) throw std::logic_error("the prefix was not pinned");
    return {pin_us, time_us([&] { cache_->prefixes()->unpin(pinned.pin); })};
  }
  /// Times of start() and of the end of a request that has computed nothing.
  std::array<double, 2> start(const std::vector<Token>& tokens) {
    RequestId id;
    const double start_us = time_us([&] { id = cache_->start({.tokens = tokens, .now_s = now()})->request; });
    return {start_us, time_us([&] { cache_->end(id, RequestEnd::aborted); })};
  }
  /// Times of prefetch(), and of the calls until the prefix is cached.
  std::array<double, 2> prefetch(const std::vector<Token>& tokens) {
    const double call_us =
        time_us([&] { take(cache_->prefixes()->prefetch({.tokens = tokens, .now_s = now()}).transfers); });
    return {call_us, time_us([&] { settle(); })};
  }
  /// Times of start(), and of the calls until its prefix is loaded.
  std::array<double, 2> load(const std::vector<Token>& tokens) {
    RequestId id;
    const double call_us = time_us([&] {
      const auto started = cache_->start({.tokens = tokens, .now_s = now()});
      id = started->request;
      take(started->transfers);
    });
    const double settle_us = time_us([&] { settle(); });
    if (cache_->computed(id) == 0) throw std::logic_error("the host tier has no prefix");
    take(cache_->end(id, RequestEnd::aborted).transfers);
    settle();
    return {call_us, settle_us};
  }
  [[nodiscard]] std::int64_t prefetched_tokens() const { return cache_->prefixes()->usage().prefetched_tokens; }

 private:
  double now() { return now_s_ += 1; }
  void take(TransferPlan transfers) {
    for (const Transfer& transfer : transfers)
      if (transfer.kind != Transfer::Kind::drop) ended_.push_back({.id = transfer.id, .status = TransferStatus::done});
  }
  void settle() {
    while (!ended_.empty()) {
      settling_.swap(ended_);
      ended_.clear();
      take(cache_->tiers()->settle(settling_).transfers);
    }
  }

  std::unique_ptr<RequestCache> cache_;
  double now_s_ = 0;
  std::vector<TransferResult> ended_;
  std::vector<TransferResult> settling_;
};

void report(benchmark::State& state, const std::array<const char*, 4>& names,
            const std::array<std::vector<double>, 4>& times) {
  for (std::size_t i = 0; i < names.size(); ++i) state.counters[names[i]] = median(times[i]);
  state.SetIterationTime(median(times[0]) * 1e-6);
}

void add(std::array<std::vector<double>, 4>& times, const std::array<double, 2>& ours,
         const std::array<double, 2>& peer) {
  times[0].push_back(ours[0]);
  times[1].push_back(ours[1]);
  times[2].push_back(peer[0]);
  times[3].push_back(peer[1]);
}

/// Arguments of both: a CacheIndex; whether the layout is in columns.
void pin_8192(benchmark::State& state) {
  Server server(options_of(static_cast<CacheIndex>(state.range(0)), state.range(1) != 0, 0));
  const std::vector<Token> tokens = Server::prompt(0);
  server.serve(tokens);
  std::array<std::vector<double>, 4> times;
  for ([[maybe_unused]] const auto iteration : state) {
    for (int round = rounds_to_run(101); round > 0; --round) add(times, server.pin(tokens), server.start(tokens));
    report(state, {"pin_us", "unpin_us", "start_us", "abort_us"}, times);
  }
}
BENCHMARK(pin_8192)->ArgNames({"tree", "columns"})->ArgsProduct({{0, 1}, {0, 1}})->Iterations(1)->UseManualTime();

/// Four prompts take turns in a device with room for two, so that each is on the host alone when its turn comes.
void prefetch_8192(benchmark::State& state) {
  Server server(options_of(static_cast<CacheIndex>(state.range(0)), state.range(1) != 0, 1 << 30));
  std::vector<std::vector<Token>> prompts;
  for (std::int32_t i = 0; i < 4; ++i) server.serve(prompts.emplace_back(Server::prompt(i)));
  std::array<std::vector<double>, 4> times;
  for ([[maybe_unused]] const auto iteration : state) {
    const int rounds = rounds_to_run(101);
    for (int round = 0; round < rounds; ++round) {
      const auto i = static_cast<std::size_t>(2 * round % 4);
      add(times, server.prefetch(prompts[i]), server.load(prompts[i + 1]));
    }
    if (server.prefetched_tokens() < rounds * (prompt_tokens - 512))
      throw std::logic_error("a prefetch found no prefix");
    report(state, {"prefetch_us", "prefetch_settle_us", "load_us", "load_settle_us"}, times);
  }
}
BENCHMARK(prefetch_8192)->ArgNames({"tree", "columns"})->ArgsProduct({{0, 1}, {0, 1}})->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
