// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/cache_metrics.hpp>

#include "prometheus_samples.hpp"
#include "serve_alone.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

namespace {

PrometheusSamples metrics_of(RequestCache& cache) {
  return PrometheusSamples(to_prometheus(cache, "m"));
}

double bytes(const PrometheusSamples& metrics, const std::string& kind, const std::string& tier,
             const std::string& content) {
  return metrics["m_" + kind + "_bytes{tier=\"" + tier + "\",content=\"" + content + "\"}"];
}

/// Answers a prompt whose prefix is on the host alone.
Tokens serve_and_push_down(Server& server) {
  Tokens prompt = prompt_of(34, 0);
  server.serve(prompt);
  push_down(server);
  return prompt;
}

}  // namespace

TEST_CASE("metrics of a cache without tiers say its contents, and nothing of tiers") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    options.memory = {.state_bytes = state_bytes, .kv_bytes_per_token = 3};
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    serve_alone(*cache, world, counting(50), 1);
    const CacheUsage usage = cache->usage();
    const PrometheusSamples metrics = metrics_of(*cache);
    // In columns a state of each of two groups has a block of its own.
    const std::int64_t states = in_columns(index) ? (40 - 2 + 30 - 2) : 8;
    const double bytes_of_state = static_cast<double>(state_bytes) / (in_columns(index) ? 2 : 1);
    CHECK(metrics["m_states{tier=\"device\"}"] == static_cast<double>(usage.states));
    CHECK(metrics["m_kv_tokens{tier=\"device\"}"] == static_cast<double>(usage.kv_tokens));
    CHECK(bytes(metrics, "used", "device", "kv") == static_cast<double>(3 * usage.kv_tokens));
    CHECK(usage.states > 0);
    CHECK(bytes(metrics, "used", "device", "state") == static_cast<double>(usage.states) * bytes_of_state);
    CHECK(bytes(metrics, "capacity", "device", "kv") ==
          3 * std::int64_t{kv_blocks(options)} * options.block_size_tokens);
    CHECK(bytes(metrics, "capacity", "device", "state") == static_cast<double>(states) * bytes_of_state);
    CHECK(metrics["m_source_tokens_total{source=\"computed\"}"] == 50);
    CHECK(metrics["m_requests_total"] == 1);
    CHECK_FALSE(metrics.families().contains("m_transfers"));
    CHECK_FALSE(metrics.families().contains("m_state_checks_total"));
    CHECK_FALSE(metrics.has("m_states{tier=\"host\"}"));
  }
}

TEST_CASE("bytes of the device are left out where only the ratio of costs is known") {
  RequestCacheOptions options = small(Combination::hash_slots, {});
  options.memory = {};
  const auto cache = make_request_cache(options);
  const PrometheusSamples metrics = metrics_of(*cache);
  CHECK(metrics.has("m_states{tier=\"device\"}"));
  CHECK_FALSE(metrics.has("m_used_bytes{tier=\"device\",content=\"kv\"}"));
  CHECK_FALSE(metrics.has("m_capacity_bytes{tier=\"device\",content=\"state\"}"));
}

TEST_CASE("a budget and an arena are capacities of both contents together") {
  RequestCacheOptions options = small(Combination::hash_slots, {});
  slots(options).budget_bytes = 150;
  CHECK(bytes(metrics_of(*make_request_cache(options)), "capacity", "device", "all") == 150);
}

TEST_CASE("tokens of prompts are counted once, by the source that they came from") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Server server(small(index, host));
    const Tokens prompt = serve_and_push_down(server);
    const StartedRequest again = server.serve(prompt);
    REQUIRE(again.load);
    const auto& stats = server.cache->stats();
    const PrometheusSamples metrics = metrics_of(*server.cache);
    const double loaded = metrics["m_source_tokens_total{source=\"host\"}"];
    CHECK(loaded == static_cast<double>(again.load->tokens - again.reused_tokens));
    CHECK(loaded == static_cast<double>(stats.loaded_tokens[static_cast<std::size_t>(Medium::host)]));
    CHECK(metrics["m_source_tokens_total{source=\"device\"}"] == static_cast<double>(stats.hit_tokens) - loaded);
    CHECK(metrics["m_source_tokens_total{source=\"computed\"}"] ==
          static_cast<double>(stats.prompt_tokens - stats.hit_tokens));
    CHECK(metrics["m_source_tokens_total{source=\"file\"}"] == 0);
    CHECK(metrics["m_request_hit_tokens_count"] == static_cast<double>(stats.requests));
    CHECK(metrics["m_request_hit_tokens_sum"] == static_cast<double>(stats.hit_tokens));
    CHECK(metrics["m_loads_total{tier=\"host\"}"] == 1);
    CHECK(bytes(metrics, "capacity", "host", "all") == 4000);
    CHECK(bytes(metrics, "used", "host", "all") ==
          static_cast<double>(server.cache->tiers()->usage(Medium::host).bytes));
  }
}

TEST_CASE("transfers count under way from their decision to their end, by tier, direction and status") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Server server(small(index, host));
    const Tokens prompt = serve_and_push_down(server);
    const double done =
        metrics_of(*server.cache)["m_ended_transfers_total{tier=\"host\",direction=\"read\",status=\"done\"}"];
    CHECK(metrics_of(*server.cache)["m_waiting_requests{for=\"loads\"}"] == 0);
    const StartedRequest again = *server.start({.tokens = prompt});
    REQUIRE(again.load);
    PrometheusSamples metrics = metrics_of(*server.cache);
    CHECK(metrics["m_waiting_requests{for=\"loads\"}"] == 1);
    const double loads = metrics["m_transfers{tier=\"host\",direction=\"read\"}"];
    CHECK(loads > 0);
    CHECK(metrics["m_transfer_bytes{tier=\"host\",direction=\"read\"}"] == static_cast<double>(again.load->bytes));
    server.settle(server.carry_out(TransferStatus::damaged));
    metrics = metrics_of(*server.cache);
    CHECK(metrics["m_transfers{tier=\"host\",direction=\"read\"}"] == 0);
    CHECK(metrics["m_waiting_requests{for=\"loads\"}"] == 0);
    CHECK(metrics["m_ended_transfers_total{tier=\"host\",direction=\"read\",status=\"damaged\"}"] == loads);
    CHECK(metrics["m_ended_transfers_total{tier=\"host\",direction=\"read\",status=\"done\"}"] == done);
    CHECK(metrics["m_lost_images_total{tier=\"host\"}"] > 0);
    CHECK_FALSE(metrics.has("m_transfers{tier=\"host\",direction=\"find\"}"));
  }
}

TEST_CASE("a question to the remote tier keeps a request waiting for its answer") {
  Server server(small(Combination::hash_slots, {.remote_bytes = 4000, .write_through = true}));
  const StartedRequest started = *server.start({.tokens = prompt_of(34, 0)});
  REQUIRE(started.load);
  const PrometheusSamples metrics = metrics_of(*server.cache);
  CHECK(metrics["m_waiting_requests{for=\"answers\"}"] == 1);
  CHECK(metrics["m_transfers{tier=\"remote\",direction=\"find\"}"] == 8);
  server.move_all();
  CHECK(metrics_of(*server.cache)["m_waiting_requests{for=\"answers\"}"] == 0);
  CHECK(metrics_of(*server.cache)["m_ended_transfers_total{tier=\"remote\",direction=\"find\",status=\"gone\"}"] == 8);
}

TEST_CASE("checks of checkpoints have metrics if the cache has them") {
  RequestCacheOptions options = small(Combination::hash_slots, {});
  options.integrity = true;
  const PrometheusSamples metrics = metrics_of(*make_request_cache(options));
  CHECK(metrics["m_state_faults_total{kind=\"changed\"}"] == 0);
  CHECK(metrics.has("m_state_checks_total{kind=\"read\"}"));
}
