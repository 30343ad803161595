// SPDX-License-Identifier: Apache-2.0
// A quiet tenant and one that floods, on one cache.
#include <stateport/core/model/error.hpp>

#include "../fleet_world.hpp"
#include "../sizes.hpp"
#include "caches/policy_kind.hpp"
#include "caches/replayer.hpp"
#include "caches/request_replayer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::CacheIndex;
using stateport::InvalidArgument;

namespace {

constexpr double times = 10;

struct TenantRun {
  ReplayCounts counts;
  CacheCounts cache;
};

TenantRun serve_flooded(const Workload& workload, PolicyKind policy, std::int64_t bytes, const TenantOptions& tenants) {
  Budget budget = small_fleet(1, Route::session).node;
  budget.bytes = bytes;
  budget.tenants = tenants;
  const std::unique_ptr<ReplayCache> cache = make_budget_cache(policy, budget, {}, workload);
  NoPasses none;
  Replayer replayer(workload, *cache, none);
  replayer.run([](std::int64_t) { return true; });
  cache->check_invariants();
  return {replayer.counts(), cache->counts()};
}

double rate(const TenantRun& served, Tenant tenant) {
  return served.counts.of(tenant).token_hit_rate();
}

}  // namespace

TEST_CASE("a flood cannot take the floor of a quiet tenant, whatever the index and the order") {
  constexpr std::int64_t memory = 16 * gib;
  constexpr std::int64_t floor = memory * 3 / 10;
  constexpr std::int64_t most = memory / 2;
  const Workload quiet = made_up(WorkloadKind::chat, 300);
  const Workload both = add_flood(quiet, times);
  for (const PolicyKind policy : {PolicyKind::slots_lru, PolicyKind::slots_gdsf, PolicyKind::slots_hix,
                                  PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix}) {
    CAPTURE(name(policy));
    const TenantRun alone = serve_flooded(quiet, policy, floor, {});
    const TenantRun free = serve_flooded(both, policy, memory, {.flood = times});
    const TenantRun kept = serve_flooded(both, policy, memory, {.flood = times, .quiet_floor_bytes = floor});
    CHECK(rate(kept, Tenant::quiet) >= alone.counts.token_hit_rate() - 0.02);
    CHECK(rate(kept, Tenant::quiet) > rate(free, Tenant::quiet) + 0.05);
    CHECK(rate(kept, Tenant::flood) >= rate(free, Tenant::flood) - 0.03);
    const TenantRun kept_down = serve_flooded(both, policy, memory, {.flood = times, .flood_most_bytes = most});
    CHECK(kept_down.cache.tenant_bytes[static_cast<std::size_t>(Tenant::flood)] <= most);
    for (const TenantRun& served : {free, kept, kept_down}) {
      CHECK(served.counts.of(Tenant::none).requests == 0);
      CHECK(served.counts.of(Tenant::quiet).requests == std::ssize(quiet));
      CHECK(served.counts.of(Tenant::flood).requests == static_cast<std::int64_t>(times) * std::ssize(quiet));
      std::int64_t input = 0, hit = 0;
      for (const TenantCounts& tenant : served.counts.tenants) {
        input += tenant.input_tokens;
        hit += tenant.hit_tokens;
      }
      CHECK(input == served.counts.input_tokens);
      CHECK(hit == served.counts.hit_tokens);
    }
  }
}

TEST_CASE("quotas that no tenant has change no hit") {
  const Workload both = add_flood(made_up(WorkloadKind::agent, 100), 2);
  for (const PolicyKind policy : {PolicyKind::slots_lru, PolicyKind::slots_gdsf, PolicyKind::slots_hix,
                                  PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix}) {
    CAPTURE(name(policy));
    for (const std::int64_t memory : {4 * gib, 16 * gib}) {
      const TenantRun with_quotas = serve_flooded(both, policy, memory, {.flood = 2});
      CHECK(with_quotas.counts.hit_tokens == serve_flooded(both, policy, memory, {}).counts.hit_tokens);
    }
  }
}

TEST_CASE(
    "a floor above all the KV of a workload is all of it, and one that leaves no memory for a request is refused") {
  const Workload both = add_flood(made_up(WorkloadKind::chat, 20), times);
  const TenantOptions most_of_it = {.flood = times, .quiet_floor_bytes = 200 * gib};
  for (const PolicyKind policy : {PolicyKind::slots_lru, PolicyKind::hix}) {
    const TenantRun kept = serve_flooded(both, policy, 256 * gib, most_of_it);
    CHECK(kept.counts.hit_tokens == serve_flooded(both, policy, 256 * gib, {.flood = times}).counts.hit_tokens);
    CHECK_THROWS_WITH_AS(serve_flooded(both, policy, 4 * gib, {.flood = times, .quiet_floor_bytes = 4 * gib}),
                         doctest::Contains("quiet_floor_bytes = 4294967296 (floor_bytes = "), InvalidArgument);
  }
}

TEST_CASE("requests at a time keep the floor of a quiet tenant, in slots and in columns") {
  const Workload quiet = made_up(WorkloadKind::chat, 60);
  const Workload both = add_flood(quiet, times);
  const stateport::MemoryCost cost{.state_bytes = 77'266'944, .kv_bytes_per_token = 24'576};
  const auto serve_with = [&](RequestReplayOptions options, const TenantOptions& tenants) {
    options.cache.memory = cost;
    options.cache.tenant_quotas = tenants.quotas();
    options.tenants = tenants;
    NoPasses none;
    RequestReplayer replayer(both, options, none);
    replayer.run([](std::int64_t) { return true; });
    replayer.check_invariants();
    return TenantRun{replayer.counts(), replayer.cache_counts()};
  };
  constexpr std::int32_t slots = 60;
  constexpr std::int64_t floor = 30 * std::int64_t{77'266'944};
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    const RequestReplayOptions in_slots{
        .cache = pool_cache_options(both, index, std::max<std::int64_t>(served_blocks_min(both), 480), slots, false)};
    const RequestReplayOptions in_columns{.cache = align_cache_options(both, slots, 0, false, index)};
    for (const RequestReplayOptions& options : {in_slots, in_columns}) {
      const TenantRun free = serve_with(options, {.flood = times});
      const TenantRun kept = serve_with(options, {.flood = times, .quiet_floor_bytes = floor});
      CHECK(kept.counts.of(Tenant::quiet).requests == std::ssize(quiet));
      CHECK(rate(kept, Tenant::quiet) > rate(free, Tenant::quiet) + 0.05);
      CHECK(rate(kept, Tenant::flood) > rate(free, Tenant::flood) - 0.02);
      CHECK(kept.cache.tenant_bytes[static_cast<std::size_t>(Tenant::quiet)] >
            free.cache.tenant_bytes[static_cast<std::size_t>(Tenant::quiet)]);
      CHECK_THROWS_AS(serve_with(options, {.flood = times, .quiet_floor_bytes = 1000 * gib}), InvalidArgument);
    }
  }
}
