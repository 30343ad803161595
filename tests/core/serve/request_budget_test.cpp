// SPDX-License-Identifier: Apache-2.0
// One memory for KV and checkpoints, and the recency of states, one request at a time.
#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <variant>
#include <vector>

using namespace stateport;
using stateport::test::Combination;
using stateport::test::for_each_seed;
using stateport::test::index_of;
using stateport::test::Random;
using stateport::test::slot_combinations;
using stateport::test::slots;

namespace {

constexpr std::int32_t block_tokens = 4;

/// A prompt as the names of its blocks, and tokens behind the last one.
struct NamedBlocks {
  std::vector<std::int32_t> names;
  std::int32_t extra = 1;

  [[nodiscard]] std::vector<Token> tokens() const {
    std::vector<Token> tokens;
    for (const std::int32_t name : names)
      for (std::int32_t i = 0; i < block_tokens; ++i) tokens.push_back(block_tokens * name + i);
    tokens.resize(tokens.size() + static_cast<std::size_t>(extra), -1);
    return tokens;
  }
};

RequestCacheOptions options_of(Combination index, CheckpointPlacement placement, std::int32_t checkpoints) {
  return {.index = index_of(index),
          .layout = SlotLayout{.checkpoints = checkpoints, .placement = placement},
          .max_requests = 1,
          .max_request_tokens = 64,
          .block_size_tokens = block_tokens,
          .kv_tokens = 4096,
          .unchecked_layout = true,
          .hash = BlockHashKind::xxh3_128};
}

/// Serves the prompt in one pass, then `decoded` tokens.
StartedRequest serve(RequestCache& cache, const NamedBlocks& blocks, std::int32_t decoded = 0) {
  const std::vector<Token> tokens = blocks.tokens();
  const auto started = cache.start({.tokens = tokens});
  REQUIRE(started);
  const auto rest = static_cast<std::int32_t>(std::ssize(tokens) - started->reused_tokens);
  for (std::int32_t step = 0; step <= decoded; ++step) {
    const PassRow row{.request = started->request, .tokens = step == 0 ? rest : 1};
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows_without_room == 0);
    const std::int32_t count = decoded > 0 ? 1 : 0;
    const Token token = -2;
    static_cast<void>(cache.commit(plan.pass, {&count, 1}, {&token, static_cast<std::size_t>(count)}));
  }
  cache.finish(started->request);
  cache.check_invariants();
  return *started;
}

/// The index by block hash under one budget, as whole prefixes in ordered maps: slow and obvious. The state used
/// longest ago goes, and with it the KV that led to nothing else.
class ModelBudget {
 public:
  explicit ModelBudget(const RequestCacheOptions& options)
      : memory_(options.memory), bytes_(std::get<SlotLayout>(options.layout).budget_bytes) {}

  struct Found {
    std::int64_t cached;
    std::int64_t reused;  ///< both in tokens
  };

  Found serve(const NamedBlocks& prompt) {
    using Difference = std::vector<std::int32_t>::difference_type;
    const std::vector<std::int32_t>& names = prompt.names;
    const auto prefix = [&](std::int64_t depth) {
      return Prefix(names.begin(), names.begin() + static_cast<Difference>(depth));
    };
    const std::int64_t full = std::ssize(names);
    std::int64_t matched = 0;
    while (matched < full && kv_.contains(prefix(matched + 1))) ++matched;
    const std::int64_t usable = (full * block_tokens + prompt.extra - 1) / block_tokens;
    std::int64_t hit = std::min(matched, usable);
    while (hit > 0 && !states_.contains(prefix(hit))) --hit;
    const std::int64_t last = usable == 0 ? full : usable;
    for (std::int64_t depth = 1; depth <= last; ++depth) kv_.insert(prefix(depth));
    for (const std::int64_t depth : {last, std::min(matched, last)})
      if (depth > hit && !states_.contains(prefix(depth))) states_[prefix(depth)] = ++uses_;
    if (hit > 0) states_[prefix(hit)] = ++uses_;
    while (memory_.of(kv_tokens(), states()) > bytes_) evict();
    return {matched * block_tokens, hit * block_tokens};
  }

  [[nodiscard]] std::int64_t kv_tokens() const { return std::ssize(kv_) * block_tokens; }
  [[nodiscard]] std::int64_t states() const { return std::ssize(states_); }
  [[nodiscard]] std::int64_t evictions() const { return evictions_; }

 private:
  using Prefix = std::vector<std::int32_t>;

  void evict() {
    const auto oldest = std::ranges::min_element(states_, {}, [](const auto& state) { return state.second; });
    Prefix prefix = oldest->first;
    states_.erase(oldest);
    ++evictions_;
    const auto continues = [&](const Prefix& longer) {
      return longer.size() == prefix.size() + 1 && std::equal(prefix.begin(), prefix.end(), longer.begin());
    };
    for (; !prefix.empty() && !states_.contains(prefix) && std::ranges::none_of(kv_, continues); prefix.pop_back())
      kv_.erase(prefix);
  }

  MemoryCost memory_;
  std::int64_t bytes_;
  std::set<Prefix> kv_;
  std::map<Prefix, std::int64_t> states_;  ///< number of the last use
  std::int64_t uses_ = 0;
  std::int64_t evictions_ = 0;
};

}  // namespace

TEST_CASE("by block hash one budget for KV and states decides as a slow model") {
  for_each_seed(300, [](Random& random, std::uint64_t) {
    RequestCacheOptions options = options_of(Combination::hash_slots, CheckpointPlacement::branch, 400);
    slots(options).budget_bytes = random.between(1, 1500);
    options.memory = {.state_bytes = random.between(1, 200), .kv_bytes_per_token = random.between(1, 10)};
    const auto cache = make_request_cache(options);
    ModelBudget model(options);
    for (int request = 0; request < 80; ++request) {
      NamedBlocks prompt;
      prompt.names.resize(static_cast<std::size_t>(random.between(0, 9)));
      for (std::int32_t& name : prompt.names) name = random.between32(1, 2);
      prompt.extra = prompt.names.empty() ? 1 : random.between32(0, block_tokens - 1);
      const ModelBudget::Found expected = model.serve(prompt);
      const StartedRequest found = serve(*cache, prompt);
      REQUIRE(found.reused_tokens == expected.reused);
      REQUIRE(found.lost_tokens == expected.cached - expected.reused);
      const CacheUsage usage = cache->usage();
      REQUIRE(usage.kv_tokens == model.kv_tokens());
      REQUIRE(usage.states == model.states());
      REQUIRE(usage.evicted_states == model.evictions());
    }
  });
}

TEST_CASE("under a budget the KV that no state needs is evicted before a state") {
  RequestCacheOptions options = options_of(Combination::hash_slots, CheckpointPlacement::last, 10);
  options.memory = {.state_bytes = 100, .kv_bytes_per_token = 10};
  slots(options).budget_bytes = options.memory.of(2 * block_tokens, 1);
  const auto cache = make_request_cache(options);
  serve(*cache, {.names = {1, 2}}, 2 * block_tokens);  // and two blocks of answer without a state
  CHECK(cache->usage().kv_tokens == 2 * block_tokens);
  CHECK(cache->usage().states == 1);
  CHECK(serve(*cache, {.names = {1, 2}}).reused_tokens == 2 * block_tokens);
}

namespace {

/// One pass of one request over `tokens` tokens of its prompt.
void pass(RequestCache& cache, RequestId request, std::int32_t tokens) {
  const PassRow row{.request = request, .tokens = tokens};
  const PassPlan plan = cache.plan({&row, 1});
  REQUIRE(plan.rows_without_room == 0);
  const std::int32_t none = 0;
  static_cast<void>(cache.commit(plan.pass, {&none, 1}, {}));
  cache.check_invariants();
}

}  // namespace

TEST_CASE("of two requests that compute the same at a time one copy is kept, and is found") {
  const std::vector<Token> prompt = NamedBlocks{.names = {1, 2, 3, 4, 5, 6, 7, 8}}.tokens();
  for (const Combination index : slot_combinations)
    for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{1} << 40, std::int64_t{8 * block_tokens + 4096}})
      for (const std::int32_t chunk : {33, 16})
        for (const bool in_turn : {false, true}) {
          CAPTURE(static_cast<int>(index));
          CAPTURE(budget);
          CAPTURE(chunk);
          RequestCacheOptions options = options_of(index, CheckpointPlacement::last, 10);
          options.max_requests = 2;
          slots(options).budget_bytes = budget;
          const auto cache = make_request_cache(options);
          const RequestId a = cache->start({.tokens = prompt})->request;
          const RequestId b = cache->start({.tokens = prompt})->request;
          pass(*cache, a, chunk);
          pass(*cache, b, chunk);
          if (chunk < 33) pass(*cache, in_turn ? b : a, 33 - chunk);
          if (chunk < 33) pass(*cache, in_turn ? a : b, 33 - chunk);
          cache->finish(in_turn ? a : b);
          cache->finish(in_turn ? b : a);
          // Under pressure the copy that is found may go while the other one is still held.
          if (budget > 0 && budget < 5000) serve(*cache, {.names = {1, 2, 3, 4, 5, 6, 7, 8}});
          for (int again = 0; again < 3; ++again)
            REQUIRE(serve(*cache, {.names = {1, 2, 3, 4, 5, 6, 7, 8}}).reused_tokens == 8 * block_tokens);
          if (budget == 0) continue;
          CHECK(cache->usage().kv_tokens == 8 * block_tokens);
          CHECK(cache->usage().states == 1);
        }
}

TEST_CASE("a state that went while its prompt waited is made again") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = options_of(index, CheckpointPlacement::last, 2);
    options.max_requests = 2;
    slots(options).scan_alignment_tokens = -1;  // the state at the end of the prompt is kept
    const auto cache = make_request_cache(options);
    const NamedBlocks whole{.names = {1, 2, 3, 4}, .extra = 0};
    serve(*cache, whole);
    const std::vector<Token> prompt = whole.tokens();
    const RequestId waiting = cache->start({.tokens = prompt})->request;
    for (std::int32_t other = 5; other < 9; ++other) serve(*cache, {.names = {other}, .extra = 0});
    pass(*cache, waiting, 4 * block_tokens);
    cache->abort(waiting);
    CHECK(serve(*cache, {.names = {1, 2, 3, 4}}).reused_tokens == 4 * block_tokens);
  }
}

TEST_CASE("an order spares the request that ended last in a tree, whatever the budget") {
  for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::filo, EvictionOrder::gdsf}) {
    CAPTURE(name(order));
    RequestCacheOptions options = options_of(Combination::tree_slots, CheckpointPlacement::last, 10);
    options.memory = {.state_bytes = 100, .kv_bytes_per_token = 10};
    slots(options).budget_bytes = options.memory.of(4 * block_tokens, 1);
    options.eviction = order;
    const auto cache = make_request_cache(options);
    serve(*cache, {.names = {1, 2}});
    serve(*cache, {.names = {3, 4}, .extra = 3}, block_tokens + 1);  // and ends with a whole page
    CHECK(cache->usage().states == 1);
    std::vector<Token> next = NamedBlocks{.names = {3, 4}, .extra = 3}.tokens();
    next.resize(4 * block_tokens, -2);
    next.push_back(7);
    CHECK(cache->start({.tokens = next})->reused_tokens == 4 * block_tokens);
  }
}

TEST_CASE("a state that is only passed over gets no newer, so it is evicted first") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    // A tree runs its requests in a slot of the same pool.
    const auto cache =
        make_request_cache(options_of(index, CheckpointPlacement::last, index == Combination::tree_slots ? 2 : 3));
    serve(*cache, {.names = {1}});     // states: 1
    serve(*cache, {.names = {5}});     // 1, 5
    serve(*cache, {.names = {1, 2}});  // 1, 5, 12; continues from the one after 1
    CHECK(serve(*cache, {.names = {1, 2}}).reused_tokens == 2 * block_tokens);  // passes over it
    serve(*cache, {.names = {5}});
    serve(*cache, {.names = {6}});
    CHECK(serve(*cache, {.names = {1, 9}}).lost == LostHit::evicted);
  }
}

TEST_CASE("a state that is there, and leaves the forward no token, costs no other one") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = options_of(index, CheckpointPlacement::last, 2);
    slots(options).scan_alignment_tokens = -1;  // the state at the end of the prompt is kept
    const auto cache = make_request_cache(options);
    const NamedBlocks whole{.names = {1, 2}, .extra = 0};
    serve(*cache, whole);
    serve(*cache, {.names = {5}, .extra = 0});
    CHECK(serve(*cache, whole).lost == LostHit::too_few_tokens);
    CHECK(cache->usage().evicted_states == 0);
    CHECK(cache->usage().states == 2);
  }
}

TEST_CASE("if slots are short the deepest states of a prompt get them") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    for (const std::int32_t extra : {1, 0}) {  // 0: the last state is that of the pass's end
      CAPTURE(extra);
      RequestCacheOptions options = options_of(index, CheckpointPlacement::every, 2);
      options.events = true;
      const auto cache = make_request_cache(options);
      serve(*cache, {.names = {1, 2, 3, 4, 5}, .extra = extra});
      std::array<CacheEvent, 64> events;
      const std::size_t count = cache->take_events(events);
      std::set<std::int64_t> stored;
      for (const CacheEvent& event : std::span(events).first(count))
        if (event.content == CacheEvent::Content::state) stored.insert(event.tokens);
      CHECK(stored == std::set<std::int64_t>{4 * block_tokens, 5 * block_tokens});
    }
  }
}
