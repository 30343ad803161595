// SPDX-License-Identifier: Apache-2.0
// The JSON of a budget: its parts add up to the whole.
#include <stateport/core/model/models.hpp>

#include "../sizes.hpp"
#include "report/json.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

using namespace stateport;
using namespace stateport::replay;
using stateport::replay::test::gib;

namespace {

/// An agent workload under 4 GiB.
struct Run {
  Report report;
  nlohmann::json json;
};

/// `below`: its tiers and speeds.
Run make_run(std::int64_t requests, const Budget& below = {}) {
  const Workload workload = generate_workload({.kind = WorkloadKind::agent, .requests = 400});
  const Budget budget{.bytes = 4 * gib,
                      .state_bytes = 77'266'944,
                      .kv_bytes_per_token = 24'576,
                      .block_size_tokens = 512,
                      .host_bytes = below.host_bytes,
                      .file_bytes = below.file_bytes,
                      .speeds = below.speeds};
  const ComputeCost cost = compute_cost("qwen3-next-80b-a3b");
  const auto cache = make_budget_cache(PolicyKind::hix, budget, cost, workload);
  NoPasses states;
  Replayer replayer(workload, *cache, states, cost);
  Timeline timeline(workload, requests, budget, *cache, states);
  replayer.run([&](std::int64_t served) {
    timeline.served(served, replayer.counts());
    return served < requests;
  });
  Run run;
  Report& report = run.report;
  report.run = {.command = "budget",
                .workload = "agents",
                .model = "qwen3-next-80b-a3b",
                .cache = "budget, hix",
                .memory = {.bytes = budget.bytes,
                           .host_bytes = budget.host_bytes,
                           .disk_bytes = budget.file_bytes,
                           .speeds = budget.speeds},
                .full_state_bytes = static_cast<std::size_t>(budget.state_bytes),
                .checkpoint_bytes = static_cast<std::size_t>(budget.state_bytes)};
  report.timeline = timeline.take(replayer.counts());
  report.replay = replayer.counts();
  report.cache = cache->counts();
  report.mover = states.counts();
  const std::array budgets = {2 * gib, 4 * gib};
  report.capacities = sweep(workload, requests, budget, budgets, compared_policies, cost, [] { return true; });
  run.json = nlohmann::json::parse(to_json(report));
  return run;
}

double share(const nlohmann::json& part, const nlohmann::json& whole) {
  return 100 * part.get<double>() / whole.get<double>();
}

}  // namespace

TEST_CASE("a report has the cell of each policy and memory, and one of them is the run's own") {
  const Run run = make_run(400);
  const auto& capacities = run.json["capacities"];
  REQUIRE(capacities.size() == 2 * compared_policies.size());
  int own = 0;
  for (const auto& cell : capacities) {
    if (cell["policy"] != run.json["policy"] || cell["budget_bytes"] != run.json["budget_bytes"]) continue;
    ++own;
    CHECK(cell["hit_tokens"] == run.json["hit_tokens"]);
    CHECK(cell["victims"] == run.json["victims"]);
  }
  CHECK(own == 1);
  CHECK(run.json["token_hit_rate_ceiling"] >= run.json["token_hit_rate"]);
}

TEST_CASE("the intervals of a report add up to the run") {
  const Run run = make_run(333);
  const auto& timeline = run.json["timeline"];
  REQUIRE(timeline.size() == Timeline::intervals_max);
  std::map<std::string, std::int64_t> sums;
  for (const auto& interval : timeline) {
    std::int64_t tokens = interval["hit_tokens"];
    for (const auto& [reason, lost] : interval["lost_tokens"].items()) {
      tokens += lost.get<std::int64_t>();
      sums[reason] += lost.get<std::int64_t>();
    }
    CHECK(tokens == interval["input_tokens"]);
    CHECK(interval["kv_bytes"].get<std::int64_t>() + interval["state_bytes"].get<std::int64_t>() <= 4 * gib);
    for (const char* key : {"requests", "input_tokens", "hit_tokens", "states_copied"})
      sums[key] += interval[key].get<std::int64_t>();
  }
  for (const char* key : {"requests", "input_tokens", "hit_tokens"}) CHECK(run.json[key] == sums[key]);
  for (const auto& [reason, lost] : run.json["lost_tokens"].items()) CHECK(lost == sums[reason]);
  CHECK(run.json["restores"].get<std::int64_t>() + run.json["commits"].get<std::int64_t>() == sums["states_copied"]);
}

TEST_CASE("every hit is in a tier or on the device") {
  const Run run = make_run(333, {.host_bytes = 4 * gib,
                                 .file_bytes = 32 * gib,
                                 .speeds = {.host_bytes_per_s = 2e10, .file_bytes_per_s = 5e9, .tokens_per_s = 1e4}});
  REQUIRE(run.json["tiers"].size() == 2);
  CHECK(run.json["tiers"][0]["bytes"] == 4 * gib);
  CHECK(run.json["tiers"][1]["bytes"] == 32 * gib);
  std::map<std::string, std::int64_t> hits;
  for (const auto& interval : run.json["timeline"]) {
    const std::int64_t host = interval["host_hit_tokens"];
    const std::int64_t files = interval["file_hit_tokens"];
    CHECK(interval["hit_tokens"].get<std::int64_t>() - host - files >= 0);
    hits["host"] += host;
    hits["file"] += files;
  }
  for (const auto& tier : run.json["tiers"]) {
    CHECK(tier["loads"] > 0);
    CHECK(tier["seconds"] > 0);
    CHECK(tier["token_hit_rate"] > 0);
    CHECK(share(hits[tier["name"]], run.json["input_tokens"]) ==
          doctest::Approx(100 * tier["token_hit_rate"].get<double>()));
  }
  for (const auto& cell : run.json["capacities"]) {
    if (cell["policy"] != "hix" || cell["budget_bytes"] != 4 * gib) continue;
    CHECK(cell["host_hit_tokens"] == hits["host"]);
    CHECK(cell["file_hit_tokens"] == hits["file"]);
  }
}

TEST_CASE("the seconds of a host tier are those of its tokens and bytes at the speeds given") {
  const Run run = make_run(400, {.host_bytes = 8 * gib, .speeds = {.host_bytes_per_s = 2e10, .tokens_per_s = 1e4}});
  const auto& tier = run.json["tiers"][0];
  const double tokens = tier["token_hit_rate"].get<double>() * run.json["input_tokens"].get<double>();
  CHECK(tier["seconds"].get<double>() == doctest::Approx(tokens / 1e4 - tier["bytes_read"].get<double>() / 2e10));
}

TEST_CASE("a report without tiers has none, and without speeds no time") {
  CHECK(make_run(50).json["tiers"].empty());
  CHECK(make_run(50, {.host_bytes = gib}).json["tiers"][0]["seconds"].is_null());
}

TEST_CASE("the ages of a report are those of all reuses and evictions") {
  const Run run = make_run(400);
  std::int64_t reuses = 0;
  std::int64_t evictions = 0;
  for (const auto& bucket : run.json["ages"]) {
    reuses += bucket["reuses"].get<std::int64_t>();
    evictions += bucket["evictions"].get<std::int64_t>();
  }
  CHECK(reuses == run.report.replay.requests_hit);
  CHECK(run.json["evictions"] == evictions);
}

TEST_CASE("a report of one request has one interval") {
  CHECK(make_run(1).json["timeline"].size() == 1);
}
