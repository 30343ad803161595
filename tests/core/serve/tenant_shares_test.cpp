// SPDX-License-Identifier: Apache-2.0
// Shares of tenants: floors, limits, and the flood that a quiet tenant does not notice.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "checked_shares.hpp"
#include "combination.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

using TenantPrompt = std::vector<Token>;

constexpr std::int32_t kv_block = 4;
constexpr MemoryCost share_memory{.state_bytes = 40, .kv_bytes_per_token = 1};
constexpr std::int64_t tenant_prompt_tokens = 61;  ///< 15 blocks and a token
constexpr std::int64_t tenant_prompt_bytes = 60 + 40;

/// Room for `prompts` prompts with a state each, or with `one_memory` twice that, of which a budget allows as much.
RequestCacheOptions shared_cache(Combination index, std::int32_t prompts, bool one_memory = false) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 64,
                              .block_size_tokens = kv_block,
                              .kv_tokens = std::int64_t{prompts} * (one_memory ? 2 : 1) * 64,
                              .unchecked_layout = true,
                              .memory = share_memory,
                              .hash = BlockHashKind::xxh3_128,
                              .tenant_quotas = 2};
  if (in_columns(index))
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = 60, .blocks = prompts + 4}}};
  else
    options.layout = SlotLayout{.checkpoints = prompts * (one_memory ? 2 : 1),
                                .placement = CheckpointPlacement::last,
                                .budget_bytes = one_memory ? prompts * tenant_prompt_bytes : 0};
  return options;
}

TenantPrompt tenant_prompt(Token first, std::int64_t count = tenant_prompt_tokens) {
  TenantPrompt tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<Token>(i));
  return tokens;
}

/// Serves a prompt alone; answers the tokens that it reused.
std::int64_t serve_tenant(RequestCache& cache, const char* tenant, const TenantPrompt& prompt, double& now_s) {
  Namespace name_space;
  if (tenant != nullptr) name_space.salt = tenant;
  const auto started = cache.start({.tokens = prompt, .name_space = name_space, .now_s = now_s += 1});
  REQUIRE(started);
  finish_prompt(cache, started->request, std::ssize(prompt));
  return started->reused_tokens;
}

std::int64_t tenant_bytes(RequestCache& cache, const char* tenant) {
  const TenantUsage usage = cache.tenants()->usage(NameKey(std::string(tenant)));
  return usage.kv_bytes + usage.state_bytes;
}

/// Hit tokens of a tenant that asks `prompts` prompts in turn while another asks `flood` new ones for each of them.
std::int64_t quiet_hits(RequestCache& cache, int prompts, int flood) {
  std::int64_t hits = 0;
  double now_s = 0;
  Token next = 100'000;
  for (int turn = 0; turn < 10 * prompts; ++turn) {
    hits += serve_tenant(cache, "quiet", tenant_prompt(1000 * (turn % prompts)), now_s);
    for (int i = 0; i < flood; ++i) serve_tenant(cache, "flood", tenant_prompt(next += 1000), now_s);
  }
  return hits;
}

std::vector<EvictionOrder> tenant_policies(Combination index) {
  if (index == Combination::hash_columns) return {EvictionOrder::lru, EvictionOrder::lfu};
  return {EvictionOrder::lru, EvictionOrder::hix, EvictionOrder::lfu};
}

}  // namespace

TEST_CASE("a flood ten times as fast takes nothing of a quiet tenant's floor") {
  for (const Combination index : every_combination)
    for (const bool one_memory : {false, true})
      for (const EvictionOrder order : tenant_policies(index)) {
        if (one_memory && in_columns(index)) continue;
        CAPTURE(static_cast<int>(index));
        CAPTURE(one_memory);
        CAPTURE(name(order));
        constexpr int prompts = 6;
        RequestCacheOptions options = shared_cache(index, 20, one_memory);
        options.eviction = order;
        const auto unprotected = make_request_cache(options);
        const auto cache = make_request_cache(options);
        // With a page to spare for the end of a prompt.
        cache->tenants()->set_quota({.salt = "quiet", .floor_bytes = prompts * (tenant_prompt_bytes + kv_block) + 60});
        // A cache of the size of the floor.
        RequestCacheOptions small = shared_cache(index, prompts + 1, one_memory);
        small.eviction = order;
        const std::int64_t alone = quiet_hits(*make_request_cache(small), prompts, 0);
        const std::int64_t asked = 10 * prompts * tenant_prompt_tokens;
        const std::int64_t with_floor = quiet_hits(*cache, prompts, 10);
        CHECK(alone > asked * 8 / 10);
        CHECK(with_floor >= alone - asked * 2 / 100);
        if (order == EvictionOrder::lru) CHECK(quiet_hits(*unprotected, prompts, 10) == 0);
      }
}

TEST_CASE("a tenant has no more than its limit, even while memory is free") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(shared_cache(index, 20));
    cache->tenants()->set_quota({.salt = "capped", .most_bytes = 4 * tenant_prompt_bytes});
    double now_s = 0;
    for (int i = 0; i < 12; ++i) {
      serve_tenant(*cache, "capped", tenant_prompt(1000 * i), now_s);
      CHECK(tenant_bytes(*cache, "capped") <= 4 * tenant_prompt_bytes);
    }
    CHECK(tenant_bytes(*cache, "capped") > 2 * tenant_prompt_bytes);
    CHECK(serve_tenant(*cache, "capped", tenant_prompt(11'000), now_s) == 60);
    // What others have stays.
    for (int i = 0; i < 6; ++i) serve_tenant(*cache, "free", tenant_prompt(1000 * i), now_s);
    for (int i = 0; i < 6; ++i) CHECK(serve_tenant(*cache, "free", tenant_prompt(1000 * i), now_s) == 60);
    for (int i = 20; i < 40; ++i) serve_tenant(*cache, "capped", tenant_prompt(1000 * i), now_s);
    for (int i = 0; i < 6; ++i) CHECK(serve_tenant(*cache, "free", tenant_prompt(1000 * i), now_s) == 60);
  }
}

TEST_CASE("a quota counts what is cached already, and can be taken back") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(shared_cache(index, 20));
    double now_s = 0;
    for (int i = 0; i < 6; ++i) serve_tenant(*cache, "quiet", tenant_prompt(1000 * i), now_s);
    const std::int64_t before = tenant_bytes(*cache, "quiet");
    CHECK(before >= 6 * tenant_prompt_bytes);
    cache->tenants()->set_quota({.salt = "quiet", .floor_bytes = 7 * tenant_prompt_bytes});
    CHECK(tenant_bytes(*cache, "quiet") == before);
    for (int i = 0; i < 40; ++i) serve_tenant(*cache, nullptr, tenant_prompt(100'000 + 1000 * i), now_s);
    CHECK(tenant_bytes(*cache, "quiet") == before);
    for (int i = 0; i < 6; ++i) CHECK(serve_tenant(*cache, "quiet", tenant_prompt(1000 * i), now_s) == 60);
    cache->tenants()->set_quota({.salt = "quiet", .most_bytes = 2 * tenant_prompt_bytes + 60});
    serve_tenant(*cache, nullptr, tenant_prompt(90'000), now_s);  // any request brings it down to its limit
    CHECK(tenant_bytes(*cache, "quiet") <= 2 * tenant_prompt_bytes + 60);
    CHECK(serve_tenant(*cache, "quiet", tenant_prompt(5000), now_s) == 60);
    cache->tenants()->set_quota({.salt = "quiet"});
    for (int i = 0; i < 40; ++i) serve_tenant(*cache, nullptr, tenant_prompt(200'000 + 1000 * i), now_s);
    CHECK(serve_tenant(*cache, "quiet", tenant_prompt(5000), now_s) == 0);
  }
}

TEST_CASE("a tenant takes of its own floor before it finds no room") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(shared_cache(index, 16));
    cache->tenants()->set_quota({.salt = "a", .floor_bytes = 3 * tenant_prompt_bytes});
    cache->tenants()->set_quota({.salt = "b", .floor_bytes = tenant_prompt_bytes});
    double now_s = 0;
    for (int i = 0; i < 30; ++i) serve_tenant(*cache, "a", tenant_prompt(1000 * i), now_s);
    serve_tenant(*cache, "b", tenant_prompt(0), now_s);
    for (int i = 30; i < 60; ++i) serve_tenant(*cache, "a", tenant_prompt(1000 * i), now_s);
    CHECK(tenant_bytes(*cache, "b") >= tenant_prompt_bytes);
    CHECK(serve_tenant(*cache, "b", tenant_prompt(0), now_s) == 60);
    CHECK(tenant_bytes(*cache, "a") >= 3 * tenant_prompt_bytes);
  }
}

TEST_CASE("others find room for a request beside all floors, however long the prompts of their tenants are") {
  for (const Combination index : every_combination)
    for (const EvictionOrder order : tenant_policies(index)) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(name(order));
      RequestCacheOptions options = shared_cache(index, 8);
      options.eviction = order;
      const auto cache = make_request_cache(options);
      // The largest floor that is allowed.
      std::int64_t floor = 8 * 64;
      const auto is_refused = [&] {
        try {
          cache->tenants()->set_quota({.salt = "hoarder", .floor_bytes = floor});
          return false;
        } catch (const InvalidArgument& error) {
          CHECK(error.argument() == "floor_bytes");
          return true;
        }
      };
      while (is_refused()) --floor;
      CHECK(floor > 2 * tenant_prompt_bytes);
      double now_s = 0;
      for (int i = 0; i < 20; ++i) serve_tenant(*cache, "hoarder", tenant_prompt(1000 * i), now_s);
      for (int i = 0; i < 20; ++i) serve_tenant(*cache, "others", tenant_prompt(1000 * i, 64), now_s);
      CHECK(tenant_bytes(*cache, "hoarder") >= floor);
      CHECK(tenant_bytes(*cache, "hoarder") <= floor + kv_block + 40 + (by_tokens(index) ? 0 : 40));
    }
}

TEST_CASE("the end of a request does not pay with its tenant's floor for memory that others hold") {
  for (const Combination index : {Combination::hash_slots, Combination::tree_slots}) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = shared_cache(index, 10, true);
    options.max_requests = 8;
    const auto cache = make_request_cache(options);
    cache->tenants()->set_quota({.salt = "quiet", .floor_bytes = 7 * tenant_prompt_bytes});
    double now_s = 0;
    for (int i = 0; i < 7; ++i) serve_tenant(*cache, "quiet", tenant_prompt(1000 * i), now_s);
    const std::int64_t before = tenant_bytes(*cache, "quiet");
    REQUIRE(before >= 6 * tenant_prompt_bytes);
    std::vector<RequestId> running;
    for (int i = 0; i < 7; ++i) {
      const TenantPrompt prompt = tenant_prompt(100'000 + 1000 * i);
      const auto started = cache->start({.tokens = prompt, .name_space = {.salt = "flood"}, .now_s = now_s += 1});
      REQUIRE(started);
      running.push_back(started->request);
      const PassRow row{.request = started->request, .tokens = 60};
      const PassPlan plan = cache->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      constexpr std::int32_t none = 0;
      static_cast<void>(cache->commit(plan.pass, {&none, 1}, {}));
    }
    serve_tenant(*cache, "quiet", tenant_prompt(6000), now_s);
    CHECK(tenant_bytes(*cache, "quiet") >= before);
    for (const RequestId id : running) cache->finish(id);
    const CacheUsage usage = cache->usage();
    CHECK(share_memory.of(usage.kv_tokens, usage.states) <= 11 * tenant_prompt_bytes);
    CHECK(tenant_bytes(*cache, "quiet") >= before);
    cache->check_invariants();
  }
}

TEST_CASE("a drawn victim that waits does not go if it was used since") {
  for (const Combination index : {Combination::hash_slots, Combination::tree_slots}) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = shared_cache(index, 12);
    options.kv_tokens = 40 * 64;
    options.eviction = EvictionOrder::hix;
    const auto cache = make_request_cache(options);
    cache->tenants()->set_quota({.salt = "b", .floor_bytes = 1});
    double now_s = 0;
    for (int i = 0; i < 6; ++i) serve_tenant(*cache, "a", tenant_prompt(50'000 + 1000 * i), now_s);
    for (int i = 0; i < 6; ++i) serve_tenant(*cache, "b", tenant_prompt(1000 * i), now_s);
    serve_tenant(*cache, "a", tenant_prompt(90'000), now_s);  // evicts the oldest of a; one of b waits
    for (int use = 0; use < 5; ++use)
      for (int i = 0; i < 3; ++i) serve_tenant(*cache, "b", tenant_prompt(1000 * i), now_s);
    cache->tenants()->set_quota({.salt = "b", .most_bytes = 310});
    serve_tenant(*cache, "a", tenant_prompt(55'000), now_s);
    cache->tenants()->set_quota({.salt = "b", .floor_bytes = 1});
    for (int i = 0; i < 3; ++i) CHECK(serve_tenant(*cache, "b", tenant_prompt(1000 * i), now_s) == 60);
  }
}

TEST_CASE("in an arena a floor needs extents of one state") {
  for (const std::int32_t count : {1, 8}) {
    CAPTURE(count);
    RequestCacheOptions options = shared_cache(Combination::tree_slots, 80);
    slots(options).separate_checkpoints = true;
    slots(options).arena = {
        .bytes = 12'000, .kv = {.count = 16, .bytes = 64}, .states = {.count = count, .bytes = 40 * count}};
    const auto cache = make_request_cache(options);
    cache->tenants()->set_quota({.salt = "a", .most_bytes = 3000});
    if (count == 1)
      cache->tenants()->set_quota({.salt = "a", .floor_bytes = 3000});
    else
      CHECK_THROWS_WITH_AS(cache->tenants()->set_quota({.salt = "a", .floor_bytes = 3000}),
                           doctest::Contains("floor_bytes = 3000"), InvalidArgument);
  }
}

TEST_CASE("quotas that cannot be kept are refused") {
  RequestCacheOptions options = shared_cache(Combination::tree_slots, 8);
  options.tenant_quotas = tenant_quotas_max + 1;
  CHECK_THROWS_AS(make_request_cache(options), InvalidArgument);
  options.tenant_quotas = -1;
  CHECK_THROWS_AS(make_request_cache(options), InvalidArgument);
  options.tenant_quotas = 0;
  CHECK(make_request_cache(options)->tenants() == nullptr);
  options.tenant_quotas = 2;
  RequestCacheOptions of_groups = shared_cache(Combination::tree_columns, 8);
  columns(of_groups).groups.push_back(columns(of_groups).groups[0]);
  of_groups.memory.state_bytes = 2;
  CHECK(make_request_cache(of_groups)->tenants() != nullptr);
  of_groups.memory.state_bytes = 1;
  CHECK_THROWS_WITH_AS(make_request_cache(of_groups), doctest::Contains("memory.state_bytes = 1"), InvalidArgument);
  const auto cache = make_request_cache(options);
  CacheTenants& tenants = *cache->tenants();
  const auto refuses = [&](const TenantQuota& quota, const char* argument) {
    try {
      tenants.set_quota(quota);
    } catch (const InvalidArgument& error) {
      return error.argument() == argument;
    }
    return false;
  };
  CHECK(refuses({.salt = "a", .floor_bytes = -1}, "floor_bytes"));
  CHECK(refuses({.salt = "a", .most_bytes = -1}, "most_bytes"));
  CHECK(refuses({.salt = "a", .floor_bytes = 10, .most_bytes = 9}, "most_bytes"));
  CHECK(refuses({.salt = "a", .floor_bytes = INT64_MAX}, "floor_bytes"));
  CHECK(refuses({.salt = "a", .floor_bytes = 8 * 40}, "floor_bytes"));
  tenants.set_quota({.salt = "a", .floor_bytes = 100});
  tenants.set_quota({.floor_bytes = 50});
  CHECK(refuses({.salt = "b", .floor_bytes = 1}, "salt"));
  tenants.set_quota({.salt = "b"});  // had none
  CHECK(refuses({.salt = "a", .floor_bytes = 200}, "floor_bytes"));
  tenants.set_quota({});
  tenants.set_quota({.salt = "b", .most_bytes = 1});
  CHECK(tenants.usage(NameKey("b")) == TenantUsage{});
}

TEST_CASE("whatever an engine does, no tenant loses its floor to another, and none exceeds its limit") {
  for (const Combination index : every_combination)
    for (const bool tiers : {false, true})
      for (const bool arena : {false, true}) {
        if (arena && in_columns(index)) continue;
        CAPTURE(static_cast<int>(index));
        CAPTURE(tiers);
        CAPTURE(arena);
        std::int64_t hits = 0, quotas = 0, seeds = 0;
        CheckedShares::protected_calls = 0;
        for_each_seed(400, [&](Random& random, std::uint64_t) {
          RequestCacheOptions options = random_options(random, index);
          options.tenant_quotas = random.between32(1, 2);
          if (in_columns(index))
            options.memory = {.state_bytes = random.between(static_cast<std::int64_t>(group_count(options)), 40),
                              .kv_bytes_per_token = 2};
          if (arena) draw_arena(random, options);
          if (tiers) options.tiers = random_tiers(random, options);
          RandomEngine engine(random, options, false,
                              [](const auto& chosen) { return std::make_unique<CheckedShares>(chosen); });
          for (int part = 0; part < 2; ++part) {
            for (int step = 0; step < 150; ++step) engine.step();
            engine.finish();
          }
          hits += engine.hits;
          quotas += engine.quotas;
          ++seeds;
        });
        if (seeds < 400) continue;
        CHECK(hits > 100);
        CHECK(quotas > 100);
        CHECK(CheckedShares::protected_calls > 100);
      }
}
