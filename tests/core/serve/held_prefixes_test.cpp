// SPDX-License-Identifier: Apache-2.0
// Pins keep prefixes from eviction; prefetches bring them up from tiers.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "checked_shares.hpp"
#include "combination.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

using HeldPrompt = std::vector<Token>;

constexpr std::int32_t held_block = 4;
constexpr std::int64_t held_prompt_tokens = 61;      ///< 15 blocks and a token
constexpr std::int64_t held_prompt_bytes = 60 + 40;  ///< of KV and the state at its end
constexpr MemoryCost held_cost{.state_bytes = 40, .kv_bytes_per_token = 1};

/// Room for `prompts` prompts with a state each.
RequestCacheOptions pinning_cache(Combination index, std::int32_t prompts) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 64,
                              .block_size_tokens = held_block,
                              .kv_tokens = std::int64_t{prompts} * 64,
                              .unchecked_layout = true,
                              .memory = held_cost,
                              .hash = BlockHashKind::xxh3_128,
                              .prefixes = {.pins = 4, .pinned_bytes = 10'000}};
  if (in_columns(index))
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = 60, .blocks = prompts + 4}}};
  else
    options.layout = SlotLayout{.checkpoints = prompts, .placement = CheckpointPlacement::last};
  return options;
}

HeldPrompt held_prompt(Token first, std::int64_t count = held_prompt_tokens) {
  HeldPrompt tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<Token>(i));
  return tokens;
}

/// Serves a prompt alone; answers the tokens that it reused.
std::int64_t serve_held(RequestCache& cache, const HeldPrompt& prompt, double& now_s, const char* salt = nullptr) {
  Namespace name_space;
  if (salt != nullptr) name_space.salt = salt;
  const auto started = cache.start({.tokens = prompt, .name_space = name_space, .now_s = now_s += 1});
  REQUIRE(started);
  finish_prompt(cache, started->request, std::ssize(prompt));
  return started->reused_tokens;
}

void flood_held(RequestCache& cache, int prompts, Token first, double& now_s) {
  for (int i = 0; i < prompts; ++i) serve_held(cache, held_prompt(first + 1000 * i), now_s);
}

}  // namespace

TEST_CASE("a flood evicts everything but what is pinned") {
  for (const Combination index : every_combination)
    for (const EvictionOrder order : orders_of(index)) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(name(order));
      RequestCacheOptions options = pinning_cache(index, 12);
      options.eviction = order;
      const auto cache = make_request_cache(options);
      double now_s = 0;
      serve_held(*cache, held_prompt(0), now_s);
      const PinnedPrefix pinned = cache->prefixes()->pin({.tokens = held_prompt(0), .now_s = now_s}, 0);
      CHECK(pinned.pin == 1);
      CHECK(pinned.tokens == 60);
      CHECK_FALSE(pinned.refused);
      CHECK(cache->running_requests() == 0);
      cache->check_invariants();
      const PrefixUsage& usage = cache->prefixes()->usage();
      CHECK(usage.pins == 1);
      CHECK(usage.pinned_kv_tokens == 60);
      CHECK(usage.pinned_states == 1);
      CHECK(usage.pinned_bytes == held_prompt_bytes);
      flood_held(*cache, 40, 100'000, now_s);
      CHECK(serve_held(*cache, held_prompt(0), now_s) == 60);
      CHECK(cache->prefixes()->unpin(1));
      CHECK(usage.pins == 0);
      CHECK(usage.pinned_bytes == 0);
      flood_held(*cache, 60, 200'000, now_s);
      if (order == EvictionOrder::lru) CHECK(serve_held(*cache, held_prompt(0), now_s) == 0);
      CHECK_FALSE(cache->prefixes()->unpin(1));
    }
}

TEST_CASE("a pin keeps exactly the prefix that has a state, and says how long it is") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(pinning_cache(index, 12));
    CachePrefixes& prefixes = *cache->prefixes();
    double now_s = 0;
    CHECK(prefixes.pin({.tokens = held_prompt(0)}, 0).tokens == 0);
    CHECK(prefixes.usage().made_pins == 0);
    serve_held(*cache, held_prompt(0), now_s);
    // All of a prompt of whole blocks, although a request with this prompt could continue from less alone.
    CHECK(prefixes.pin({.tokens = held_prompt(0, 60), .now_s = now_s}, 0).tokens == 60);
    // Of a longer prompt the part that is cached; of a shorter one nothing, because no state is there.
    HeldPrompt longer = held_prompt(0, 60);
    longer.push_back(7);
    CHECK(prefixes.pin({.tokens = longer, .now_s = now_s}, 0).tokens == 60);
    CHECK(prefixes.pin({.tokens = held_prompt(0, 40), .now_s = now_s}, 0).tokens == 0);
    CHECK(prefixes.pin({.tokens = held_prompt(0), .name_space = {.salt = "other"}, .now_s = now_s}, 0).tokens == 0);
    // What both keep is counted once.
    CHECK(prefixes.usage().pins == 2);
    CHECK(prefixes.usage().pinned_bytes == held_prompt_bytes);
    cache->check_invariants();
    CHECK(prefixes.unpin(1));
    CHECK(prefixes.usage().pinned_bytes == held_prompt_bytes);
    flood_held(*cache, 40, 100'000, now_s);
    CHECK(serve_held(*cache, held_prompt(0), now_s) == 60);
    CHECK(prefixes.unpin(2));
    CHECK(prefixes.usage().pinned_bytes == 0);
  }
}

TEST_CASE("KV behind the state of a pin can be evicted") {
  RequestCacheOptions options = pinning_cache(Combination::hash_slots, 3);
  options.max_requests = 3;
  const auto cache = make_request_cache(options);
  double now_s = 0;
  serve_held(*cache, held_prompt(0, 41), now_s);
  serve_held(*cache, held_prompt(0, 61), now_s);
  serve_held(*cache, held_prompt(50'000, 21), now_s);
  serve_held(*cache, held_prompt(60'000, 21), now_s);  // a fourth state: that at 60 goes, and its KV stays
  CHECK(cache->usage().kv_tokens == 60 + 20 + 20);
  const PinnedPrefix pinned = cache->prefixes()->pin({.tokens = held_prompt(0), .now_s = now_s}, 0);
  CHECK(pinned.tokens == 40);
  CHECK(cache->prefixes()->usage().pinned_kv_tokens == 40);
  // A request of 64 tokens and one of 60 besides the pin.
  const HeldPrompt first = held_prompt(70'000, 63);
  const auto started = cache->start({.tokens = first, .now_s = now_s});
  REQUIRE(started);
  const PassRow row{.request = started->request, .tokens = 60};
  REQUIRE(cache->plan({&row, 1}).rows_without_room == 0);
  const HeldPrompt second = held_prompt(80'000, 63);
  const auto other = cache->start({.tokens = second, .now_s = now_s});
  REQUIRE(other);
  // And one of 16: with all 60 tokens of KV held there would be no room for it.
  const HeldPrompt third = held_prompt(90'000, 17);
  const auto small = cache->start({.tokens = third, .now_s = now_s});
  REQUIRE(small);
  const std::array all = {row, PassRow{.request = other->request, .tokens = 60},
                          PassRow{.request = small->request, .tokens = 16}};
  CHECK(cache->plan(all).rows_without_room == 0);
  cache->check_invariants();
}

TEST_CASE("a lease ends a pin with the first call after its time") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(pinning_cache(index, 12));
    CachePrefixes& prefixes = *cache->prefixes();
    double now_s = 0;
    serve_held(*cache, held_prompt(0), now_s);
    serve_held(*cache, held_prompt(1000), now_s);
    CHECK(prefixes.pin({.tokens = held_prompt(0), .now_s = now_s = 10}, 5).pin == 1);
    CHECK(prefixes.pin({.tokens = held_prompt(1000), .now_s = now_s}, 0).pin == 2);
    now_s = 13;  // serve_held counts on
    serve_held(*cache, held_prompt(2000), now_s);
    CHECK(prefixes.usage().pins == 2);
    serve_held(*cache, held_prompt(3000), now_s);
    CHECK(now_s == 15);
    CHECK(prefixes.usage().pins == 1);
    CHECK(prefixes.usage().ended_leases == 1);
    CHECK_FALSE(prefixes.unpin(1));
    now_s = 1e6;
    CHECK(prefixes.pin({.tokens = held_prompt(0), .now_s = now_s}, 1e-3).pin == 3);
    CHECK(prefixes.pin({.tokens = held_prompt(0), .now_s = now_s + 1}, 0).pin == 4);
    CHECK(prefixes.usage().pins == 2);
    CHECK(prefixes.unpin(2));
  }
}

TEST_CASE("pins are refused before they take the memory of a request") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = pinning_cache(index, 5);
    options.prefixes.pins = 8;
    const auto cache = make_request_cache(options);
    CachePrefixes& prefixes = *cache->prefixes();
    double now_s = 0;
    int pins = 0;
    for (int i = 0; i < 8; ++i) {
      serve_held(*cache, held_prompt(1000 * i), now_s);
      const PinnedPrefix pinned = prefixes.pin({.tokens = held_prompt(1000 * i), .now_s = now_s}, 0);
      pins += pinned.pin > 0;
      CHECK(pinned.refused == (pinned.tokens > 0 && pinned.pin == 0));
      cache->check_invariants();
    }
    CHECK(pins == 4);
    CHECK(prefixes.usage().refused_pins == 4);
    // Each request finds room, one after the other, of any length.
    for (int i = 20; i < 30; ++i) serve_held(*cache, held_prompt(1000 * i, 64), now_s);
    for (int i = 0; i < 4; ++i) CHECK(serve_held(*cache, held_prompt(1000 * i), now_s) == 60);
  }
}

TEST_CASE("pins have no more bytes than allowed, and no more than their number") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = pinning_cache(index, 12);
    options.prefixes = {.pins = 3, .pinned_bytes = 2 * held_prompt_bytes + 39};
    const auto cache = make_request_cache(options);
    CachePrefixes& prefixes = *cache->prefixes();
    double now_s = 0;
    for (int i = 0; i < 4; ++i) serve_held(*cache, held_prompt(1000 * i), now_s);
    CHECK(prefixes.pin({.tokens = held_prompt(0), .now_s = now_s}, 0).pin == 1);
    CHECK(prefixes.pin({.tokens = held_prompt(1000), .now_s = now_s}, 0).pin == 2);
    const PinnedPrefix third = prefixes.pin({.tokens = held_prompt(2000), .now_s = now_s}, 0);
    CHECK(third.pin == 0);
    CHECK(third.refused);
    CHECK(third.tokens == 60);
    CHECK(prefixes.pin({.tokens = held_prompt(0), .now_s = now_s}, 0).pin == 3);
    const PinnedPrefix fourth = prefixes.pin({.tokens = held_prompt(0), .now_s = now_s}, 0);
    CHECK(fourth.pin == 0);
    CHECK(fourth.refused);
    CHECK(prefixes.usage().pinned_bytes == 2 * held_prompt_bytes);
    CHECK(prefixes.unpin(2));
    CHECK(prefixes.pin({.tokens = held_prompt(2000), .now_s = now_s}, 0).pin == 4);
    cache->check_invariants();
  }
}

TEST_CASE("contents that are forgotten end their pins, and no others") {
  for (const Combination index : every_combination)
    for (const int how : {0, 1, 2, 3}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(how);
      const auto cache = make_request_cache(pinning_cache(index, 12));
      CachePrefixes& prefixes = *cache->prefixes();
      double now_s = 0;
      serve_held(*cache, held_prompt(0), now_s, "a");
      serve_held(*cache, held_prompt(0), now_s, "b");
      CHECK(prefixes.pin({.tokens = held_prompt(0), .name_space = {.salt = "a"}, .now_s = now_s}, 0).pin == 1);
      CHECK(prefixes.pin({.tokens = held_prompt(0), .name_space = {.salt = "b"}, .now_s = now_s}, 0).pin == 2);
      const HeldPrompt running = held_prompt(5000);
      std::optional<StartedRequest> started;
      if (how != 2) started = cache->start({.tokens = running, .now_s = now_s});
      if (how == 0) cache->epochs().forget({.salt = "a"}, ForgetBy::salt);
      if (how == 1) static_cast<void>(cache->epochs().advance());
      if (how >= 2) cache->reset();
      cache->check_invariants();
      CHECK_FALSE(prefixes.unpin(1));
      CHECK(prefixes.usage().pins == (how == 0 ? 1 : 0));
      CHECK(prefixes.unpin(2) == (how == 0));
      CHECK(prefixes.usage().pinned_bytes == 0);
      cache->check_invariants();
      if (started) cache->abort(started->request);
      if (how == 2) now_s = 0;
      CHECK(serve_held(*cache, held_prompt(0), now_s, "a") == 0);
      CHECK(serve_held(*cache, held_prompt(0), now_s, "b") == (how == 0 ? 60 : 0));
    }
}

TEST_CASE("a tenant's pins count for it and leave room beside floors") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = pinning_cache(index, 12);
    options.tenant_quotas = 2;
    options.prefixes.pinned_bytes = 2 * held_prompt_bytes;
    const auto cache = make_request_cache(options);
    double now_s = 0;
    serve_held(*cache, held_prompt(0), now_s, "a");
    CHECK(cache->prefixes()->pin({.tokens = held_prompt(0), .name_space = {.salt = "a"}, .now_s = now_s}, 0).pin == 1);
    cache->tenants()->set_quota({.salt = "a", .most_bytes = 1});
    serve_held(*cache, held_prompt(1000), now_s);
    const TenantUsage usage = cache->tenants()->usage(NameKey("a"));
    CHECK(usage.kv_bytes + usage.state_bytes == held_prompt_bytes);
    CHECK(serve_held(*cache, held_prompt(0), now_s, "a") == 60);
    CHECK(cache->prefixes()->unpin(1));
    CHECK(cache->tenants()->usage(NameKey("a")) == TenantUsage{});
    // A floor may take all but the pins' part and a request.
    std::int64_t floor = 12 * 64;
    const auto is_refused = [&] {
      try {
        cache->tenants()->set_quota({.salt = "b", .floor_bytes = floor});
        return false;
      } catch (const InvalidArgument&) {
        return true;
      }
    };
    while (is_refused()) --floor;
    for (int i = 0; i < 2; ++i) {
      serve_held(*cache, held_prompt(1000 * i), now_s);
      CHECK(cache->prefixes()->pin({.tokens = held_prompt(1000 * i), .now_s = now_s}, 0).pin > 0);
    }
    for (int i = 0; i < 20; ++i) serve_held(*cache, held_prompt(10'000 + 1000 * i), now_s, "b");
    for (int i = 0; i < 5; ++i) serve_held(*cache, held_prompt(50'000 + 1000 * i, 64), now_s);
  }
}

namespace {

/// A cache with a tier on the host, whose transfers are done when the test says so.
struct TieredCache {
  explicit TieredCache(RequestCacheOptions options) {
    options.tiers.host_bytes = 100'000;
    options.prefixes.prefetches = 2;
    if (options.prefixes.prefetched_bytes == 0) options.prefixes.prefetched_bytes = 10'000;
    cache = make_request_cache(options);
  }
  void take(TransferPlan transfers) {
    for (const Transfer& transfer : transfers)
      if (transfer.kind != Transfer::Kind::drop) under_way.push_back(transfer.id);
  }
  void settle(TransferStatus status = TransferStatus::done) {
    while (cache->tiers()->transfers_under_way() > 0 || !under_way.empty()) {
      std::vector<TransferResult> results;
      for (const auto id : under_way) results.push_back({.id = id, .status = status});
      under_way.clear();
      const SettledTransfers settled = cache->tiers()->settle(results);
      CHECK(settled.ready_requests == 0);  // no request of the tests waits
      take(settled.transfers);
    }
    cache->check_invariants();
  }
  /// Answers the tokens that were on the device.
  std::int64_t serve(const HeldPrompt& prompt) {
    const auto started = cache->start({.tokens = prompt, .now_s = now_s += 1, .search = PromptSearch::device});
    REQUIRE(started);
    take(started->transfers);
    for (std::int64_t left = std::ssize(prompt) - started->reused_tokens; left > 0;) {
      const PassRow row{.request = started->request,
                        .tokens = static_cast<std::int32_t>(cache->chunk(started->request, left).tokens)};
      const PassPlan plan = cache->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      take(plan.transfers);
      constexpr std::int32_t none = 0;
      take(cache->commit(plan.pass, {&none, 1}, {}).transfers);
      left -= row.tokens;
    }
    take(cache->finish(started->request).transfers);
    settle();
    return started->reused_tokens;
  }
  Prefetch prefetch(const HeldPrompt& prompt) {
    const Prefetch answer = cache->prefixes()->prefetch({.tokens = prompt, .now_s = now_s += 1});
    take(answer.transfers);
    cache->check_invariants();
    return answer;
  }

  std::unique_ptr<RequestCache> cache;
  std::vector<std::uint64_t> under_way;
  double now_s = 0;
};

}  // namespace

TEST_CASE("a prefetch brings a prefix up from a tier, and no request runs") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    TieredCache tiered(pinning_cache(index, 8));
    CachePrefixes& prefixes = *tiered.cache->prefixes();
    tiered.serve(held_prompt(0));
    for (int i = 1; i < 20; ++i) tiered.serve(held_prompt(1000 * i));
    CHECK(tiered.prefetch(held_prompt(19'000)).prefetch == 0);  // on the device already
    CHECK(tiered.prefetch(held_prompt(90'000)).prefetch == 0);  // nowhere
    CHECK(prefixes.usage().made_prefetches == 0);
    const Prefetch answer = tiered.prefetch(held_prompt(0, 60));
    CHECK(answer.prefetch == 1);
    CHECK(answer.cached_tokens == 0);
    REQUIRE(answer.load);
    CHECK(answer.load->tokens == 60);
    CHECK(answer.load->medium == Medium::host);
    CHECK(prefixes.is_prefetching(1));
    CHECK(tiered.cache->running_requests() == 0);
    tiered.settle();
    CHECK_FALSE(prefixes.is_prefetching(1));
    CHECK(prefixes.usage().prefetches == 0);
    CHECK(prefixes.usage().prefetched_tokens == 60);
    CHECK(tiered.cache->stats().requests == 20);
    CHECK(tiered.serve(held_prompt(0)) == 60);
  }
}

TEST_CASE("a prefetch that fails, or is forgotten, adds nothing") {
  for (const Combination index : every_combination)
    for (const bool fails : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(fails);
      TieredCache tiered(pinning_cache(index, 8));
      CachePrefixes& prefixes = *tiered.cache->prefixes();
      tiered.serve(held_prompt(0));
      for (int i = 1; i < 20; ++i) tiered.serve(held_prompt(1000 * i));
      CHECK(tiered.prefetch(held_prompt(0)).prefetch == 1);
      if (!fails) tiered.cache->reset();
      tiered.cache->check_invariants();
      tiered.settle(fails ? TransferStatus::failed : TransferStatus::done);
      CHECK_FALSE(prefixes.is_prefetching(1));
      CHECK(prefixes.usage().prefetched_tokens == 0);
      CHECK(tiered.serve(held_prompt(0)) == 0);
    }
}

TEST_CASE("prefetches leave the memory of pins, of requests that run and of one more alone") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    TieredCache tiered(pinning_cache(index, 4));
    CachePrefixes& prefixes = *tiered.cache->prefixes();
    for (int i = 0; i < 12; ++i) tiered.serve(held_prompt(1000 * i));
    for (int i = 10; i < 12; ++i)
      CHECK(prefixes.pin({.tokens = held_prompt(1000 * i), .now_s = tiered.now_s}, 0).pin > 0);
    CHECK(tiered.prefetch(held_prompt(0)).prefetch == 1);
    // Two pins, a load and a request: there is no room for another load.
    const Prefetch second = tiered.prefetch(held_prompt(1000));
    CHECK(second.prefetch == 0);
    CHECK_FALSE(second.load);
    CHECK(prefixes.usage().refused_prefetches == 1);
    const HeldPrompt running = held_prompt(70'000, 63);
    const auto started = tiered.cache->start({.tokens = running, .now_s = tiered.now_s});
    REQUIRE(started);
    tiered.take(started->transfers);
    const PassRow row{.request = started->request, .tokens = 60};
    const PassPlan plan = tiered.cache->plan({&row, 1});
    CHECK(plan.rows_without_room == 0);
    tiered.take(plan.transfers);
    tiered.settle();
    CHECK(prefixes.usage().prefetches == 0);
    CHECK(prefixes.usage().pins == 2);
    // A second request takes the rest: a load finds no memory, and nobody loses any.
    const HeldPrompt second_running = held_prompt(80'000, 63);
    const auto other = tiered.cache->start({.tokens = second_running, .now_s = tiered.now_s});
    REQUIRE(other);
    tiered.take(other->transfers);
    const std::array both = {row, PassRow{.request = other->request, .tokens = 60}};
    const PassPlan of_both = tiered.cache->plan(both);
    CHECK(of_both.rows_without_room == 0);
    tiered.take(of_both.transfers);
    CHECK(tiered.prefetch(held_prompt(1000)).prefetch == 0);
    CHECK(prefixes.usage().refused_prefetches == 2);
    CHECK(prefixes.usage().pins == 2);
  }
}

TEST_CASE("prefetches take no more bytes than allowed, and are no more than their number") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = pinning_cache(index, 12);
    options.prefixes.prefetched_bytes = 2 * held_prompt_bytes - 1;
    TieredCache tiered(options);
    for (int i = 0; i < 40; ++i) tiered.serve(held_prompt(1000 * i));
    const PrefixUsage& usage = tiered.cache->prefixes()->usage();
    CHECK(tiered.prefetch(held_prompt(0)).prefetch == 1);
    CHECK(tiered.prefetch(held_prompt(1000)).prefetch == 0);
    CHECK(usage.refused_prefetches == 1);
    tiered.settle();
    CHECK(tiered.prefetch(held_prompt(1000)).prefetch == 2);
    tiered.settle();
    options.prefixes.prefetched_bytes = 10 * held_prompt_bytes;
    TieredCache wide(options);
    for (int i = 0; i < 40; ++i) wide.serve(held_prompt(1000 * i));
    CHECK(wide.prefetch(held_prompt(0)).prefetch == 1);
    CHECK(wide.prefetch(held_prompt(1000)).prefetch == 2);
    const Prefetch third = wide.prefetch(held_prompt(2000));
    CHECK(third.prefetch == 0);
    CHECK(third.refused);
    wide.settle();
    CHECK(wide.serve(held_prompt(1000)) == 60);
  }
}

TEST_CASE("pins and prefetches that cannot be are refused") {
  RequestCacheOptions options = pinning_cache(Combination::tree_slots, 8);
  const auto cache = make_request_cache(options);
  CachePrefixes& prefixes = *cache->prefixes();
  double now_s = 0;
  serve_held(*cache, held_prompt(0), now_s);
  CHECK_THROWS_WITH_AS(prefixes.pin({.tokens = held_prompt(0), .now_s = 5}, -1), doctest::Contains("lease_s = -1"),
                       InvalidArgument);
  CHECK_THROWS_AS(prefixes.pin({.tokens = held_prompt(0), .now_s = 5}, std::numeric_limits<double>::infinity()),
                  InvalidArgument);
  CHECK_THROWS_WITH_AS(prefixes.pin({.tokens = held_prompt(0, 64), .now_s = 5}, 0), doctest::Contains("prompt = 64"),
                       InvalidArgument);
  CHECK_THROWS_AS(prefixes.pin({.now_s = 5}, 0), InvalidArgument);
  CHECK_THROWS_AS(prefixes.pin({.tokens = held_prompt(0), .now_s = 0}, 0), InvalidArgument);
  CHECK_THROWS_WITH_AS(prefixes.unpin(0), doctest::Contains("pin = 0"), InvalidArgument);
  CHECK_THROWS_WITH_AS(prefixes.unpin(1), doctest::Contains("pin = 1"), InvalidArgument);
  CHECK_THROWS_WITH_AS(prefixes.prefetch({.tokens = held_prompt(0), .now_s = 5, .search = PromptSearch::device}),
                       doctest::Contains("search = 2"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(prefixes.is_prefetching(1)), doctest::Contains("prefetch = 1"),
                       InvalidArgument);
  CHECK(prefixes.usage().pins == 0);
  CHECK(serve_held(*cache, held_prompt(0), now_s) == 60);  // the clock did not go on

  const auto refused = [](RequestCacheOptions bad, const char* text) {
    CHECK_THROWS_WITH_AS(make_request_cache(bad), doctest::Contains(text), InvalidArgument);
  };
  for (const std::int32_t pins : {-1, 65'537}) {
    options.prefixes = {.pins = pins};
    refused(options, "prefixes.pins");
    options.prefixes = {.prefetches = pins};
    refused(options, "prefixes.prefetches");
  }
  options.prefixes = {.pins = 1, .pinned_bytes = -1};
  refused(options, "prefixes.pinned_bytes = -1");
  options.prefixes = {.pins = 1, .prefetched_bytes = -1};
  refused(options, "prefixes.prefetched_bytes = -1");
  options.prefixes = {.prefetches = 1};
  refused(options, "need tiers");
  RequestCacheOptions none = pinning_cache(Combination::hash_columns, 8);
  columns(none).mode = AlignMode::none;
  refused(none, "mode none");
  options.prefixes = {};
  CHECK(make_request_cache(options)->prefixes() == nullptr);
}

TEST_CASE("whatever an engine does, what is pinned is found, and prefetches end") {
  for (const Combination index : every_combination)
    for (const bool tiers : {false, true})
      for (const bool arena : {false, true}) {
        if (arena && in_columns(index)) continue;
        CAPTURE(static_cast<int>(index));
        CAPTURE(tiers);
        CAPTURE(arena);
        RandomRuns runs;
        for_each_seed(120, [&](Random& random, std::uint64_t) {
          RequestCacheOptions options = random_options(random, index);
          while (in_columns(index) && columns(options).mode == AlignMode::none) options = random_options(random, index);
          const auto bytes = [&] { return options.memory.of(random.between(10, 200), random.between(1, 4)); };
          options.prefixes = {.pins = random.between32(1, 4), .pinned_bytes = bytes()};
          if (arena) draw_arena(random, options);
          if (tiers) options.tiers = random_tiers(random, options);
          if (options.tiers.enabled()) {
            options.prefixes.prefetches = random.between32(1, 3);
            options.prefixes.prefetched_bytes = bytes();
          }
          RandomEngine engine(random, options);
          engine.habits = {.changes_weights = random.chance(50), .forks = random.chance(30)};
          for (int part = 0; part < 2; ++part) {
            for (int step = 0; step < 150; ++step) engine.step();
            engine.finish();
          }
          runs.add(engine);
          ++runs.seeds;
        });
        if (runs.seeds < 120) continue;
        CHECK(runs.pins > 40);
        CHECK(runs.pin_hits > 40);
        if (tiers) CHECK(runs.prefetches > 20);
        if (tiers) CHECK(runs.prefetched > 20);
      }
}
