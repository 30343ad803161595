// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::test {

inline RequestCacheOptions small_cache(Combination index, std::int32_t drafts = 0, bool overlap = false) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 4,
                              .max_request_tokens = 96,
                              .drafts = drafts,
                              .block_size_tokens = 4,
                              .kv_tokens = 256,
                              .hash = BlockHashKind::xxh3_128,
                              .overlap = overlap};
  if (in_columns(index))
    options.layout = ColumnLayout{
        .groups = {{.block_size_tokens = 12, .blocks = 40, .conv_window = 3 + drafts, .layout_fingerprint = 7},
                   {.block_size_tokens = 24, .blocks = 30, .conv_window = 3 + drafts, .layout_fingerprint = 8}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 7, .checkpoints = 8, .decode_checkpoint_tokens = 8};
  return options;
}

inline StateWorld::Tokens counting(std::int32_t count, Token first = 100) {
  StateWorld::Tokens tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

/// Serves one prompt alone, in passes of at most `budget` tokens, then `output` tokens.
inline StartedRequest serve_alone(RequestCache& cache, StateWorld& world, const StateWorld::Tokens& prompt,
                                  std::int32_t output, RequestEnd how = RequestEnd::finished, std::int64_t budget = 96,
                                  double now_s = 0, std::span<const std::int64_t> named = {}) {
  const auto started = cache.start({.tokens = prompt, .now_s = now_s, .breakpoints = named});
  REQUIRE(started);
  StateWorld::Tokens tokens = prompt;
  std::int64_t computed = started->reused_tokens;
  for (std::int32_t sampled = 0; sampled < output;) {
    const std::int64_t left = std::ssize(prompt) - computed;
    const auto count =
        static_cast<std::int32_t>(left > 0 ? cache.chunk(started->request, std::min(left, budget)).tokens : 1);
    const std::array rows = {PassRow{.request = started->request, .tokens = count}};
    const PassPlan plan = cache.plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    world.before(plan);
    const auto first = tokens.begin() + computed;
    world.run(0, plan.rows[0], {tokens.begin(), first}, {first, first + count});
    computed += count;
    const std::int32_t samples = computed >= std::ssize(prompt) ? 1 : 0;
    const Token token = 1000 + sampled;
    world.after(cache.commit(plan.pass, {&samples, 1}, std::span(&token, static_cast<std::size_t>(samples))));
    if (samples == 1) tokens.push_back(token);
    sampled += samples;
    cache.check_invariants();
  }
  cache.end(started->request, how);
  cache.check_invariants();
  return *started;
}

/// Runs a request that has started to the end of its prompt, over no memory, and finishes it.
inline void finish_prompt(RequestCache& cache, RequestId request, std::int64_t prompt, const ReuseHint& hint = {}) {
  for (std::int64_t left = prompt - cache.computed(request); left > 0;) {
    const PassRow row{.request = request, .tokens = static_cast<std::int32_t>(cache.chunk(request, left).tokens)};
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows_without_room == 0);
    constexpr std::int32_t none = 0;
    static_cast<void>(cache.commit(plan.pass, {&none, 1}, {}));
    left -= row.tokens;
  }
  cache.finish(request, hint);
  cache.check_invariants();
}

/// Orders of eviction of all kinds that such a cache can have.
inline std::vector<EvictionOrder> orders_of(Combination index) {
  if (index == Combination::hash_columns) return {EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::mru};
  return {EvictionOrder::lru, EvictionOrder::hix, EvictionOrder::gdsf};
}

}  // namespace stateport::test
