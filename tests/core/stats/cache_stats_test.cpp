// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/stats/cache_stats.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>

using namespace stateport;
using stateport::test::for_each_seed;
using stateport::test::heap_allocations;
using stateport::test::Random;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every token of a prompt is a hit or lost for one reason") {
  for_each_seed(200, [](Random& random, std::uint64_t) {
    CacheStats stats;
    std::int64_t hits = 0;
    for (int request = 0; request < 50; ++request) {
      const std::int64_t prompt = random.between(1, 1000);
      const std::int64_t walked = random.between(0, prompt);
      const std::int64_t hit = random.chance(20) ? 0 : random.between(0, walked);
      hits += hit > 0;
      std::optional<LostHit> reason;
      if (hit < walked) reason = static_cast<LostHit>(random.between(0, 4));
      stats.count_lookup(prompt, hit, walked, reason);
    }
    std::int64_t tokens = stats.hit_tokens;
    double flops = stats.hit_flops;
    for (const Loss& loss : stats.lost) {
      tokens += loss.tokens;
      flops += loss.flops;
      REQUIRE((loss.requests == 0) == (loss.tokens == 0));
    }
    CHECK(stats.requests == 50);
    CHECK(stats.requests_hit == hits);
    CHECK(tokens == stats.prompt_tokens);
    CHECK(flops == static_cast<double>(tokens));
    CHECK(stats.hit_depths.total() == 50);
    CHECK(stats.hit_depths.sum() == static_cast<double>(stats.hit_tokens));
    CHECK(stats.loss_depths.total() == 50);
    const auto lost = static_cast<double>(tokens - stats.hit_tokens - stats.of(LostHit::never_stored).tokens);
    CHECK(stats.loss_depths.sum() == lost);
  });
}

TEST_CASE("FLOPs grow faster than tokens when attention counts") {
  CacheStats stats{.cost = {.linear = 10, .quadratic = 1}};
  stats.count_loss(LostHit::evicted, 0, 10);
  stats.count_loss(LostHit::evicted_kv, 90, 100);
  stats.count_loss(LostHit::off_grid, 5, 5);
  CHECK(stats.of(LostHit::evicted) == Loss{1, 10, 200});
  CHECK(stats.of(LostHit::evicted_kv) == Loss{1, 10, 2000});
  CHECK(stats.of(LostHit::off_grid) == Loss{});
  CacheStats other = stats;
  CHECK(other == stats);
  other.cost.linear += 1;
  CHECK(other != stats);
}

TEST_CASE("the text for people names the reasons that occurred, the one for Prometheus all of them") {
  CacheStats stats;
  stats.count_request(100, 40);
  stats.count_loss(LostHit::evicted, 40, 100);
  stats.reuse_ages.add(3);
  stats.eviction_ages.add(100);
  const std::string text = to_string(stats);
  CHECK(contains(text, "40 hit (40.00 %)"));
  CHECK(contains(text, "lost, evicted "));
  CHECK_FALSE(contains(text, "off_grid"));
  CHECK(format_as(stats) == text);
  const std::string metrics = to_prometheus(stats, "cache");
  CHECK(contains(metrics, "# TYPE cache_lost_tokens_total counter\n"));
  CHECK(contains(metrics, "cache_lost_tokens_total{reason=\"evicted\"} 60\n"));
  CHECK(contains(metrics, "cache_lost_tokens_total{reason=\"off_grid\"} 0\n"));
  CHECK(contains(metrics, "cache_reuse_age_seconds_bucket{le=\"2\"} 0\n"));
  CHECK(contains(metrics, "cache_reuse_age_seconds_bucket{le=\"4\"} 1\n"));
  CHECK(contains(metrics, "cache_reuse_age_seconds_bucket{le=\"8\"} 1\n"));  // a bucket counts those before it too
  CHECK(contains(metrics, "cache_reuse_age_seconds_bucket{le=\"+Inf\"} 1\n"));
  CHECK(contains(metrics, "cache_eviction_age_seconds_sum 100\n"));
}

TEST_CASE("every reason of a lost hit has a name of its own") {
  std::set<std::string_view> names;
  for (int reason = 0; reason < lost_hit_count; ++reason) names.insert(name(static_cast<LostHit>(reason)));
  CHECK(names.size() == static_cast<std::size_t>(lost_hit_count));
  CHECK_FALSE(names.contains("?"));
  CHECK(name(LostHit::evicted_kv) == "evicted_kv");
}

TEST_CASE("counting allocates nothing") {
  CacheStats stats;
  const std::uint64_t before = heap_allocations();
  for (int i = 0; i < 100; ++i) {
    stats.count_lookup(i + 10, i, i + 3, LostHit::evicted);
    stats.reuse_ages.add(i);
  }
  CHECK(heap_allocations() == before);
}
