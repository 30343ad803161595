// SPDX-License-Identifier: Apache-2.0
#include "report/sizing.hpp"

#include "../sizes.hpp"
#include "report/json.hpp"
#include "report/sweep.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace stateport::replay;
using stateport::replay::test::gib;

namespace {

constexpr Budget budget = {
    .bytes = 8 * gib, .state_bytes = 77'266'944, .kv_bytes_per_token = 24'576, .block_size_tokens = 512};

Sizing size(PolicyKind policy) {
  return size_cache(generate_workload({.kind = WorkloadKind::chat, .requests = 400}), 400, budget, policy, {},
                    [] { return true; });
}

}  // namespace

TEST_CASE("sizing expects the hit rate of a replay with that budget, below the ceiling, and a split that fits") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 400});
  for (const PolicyKind policy : all_policies) {
    const Sizing sizing = size(policy);
    const std::vector<std::int64_t> budgets = {budget.bytes};
    const std::vector<PolicyKind> policies = {policy};
    const auto cells = sweep(workload, 400, budget, budgets, policies, {}, [] { return true; });
    CHECK(sizing.hit_tokens == cells.front().hit_tokens);
    CHECK(sizing.token_hit_rate == cells.front().token_hit_rate);
    CHECK(sizing.token_hit_rate <= sizing.ceiling);
    CHECK(sizing.mean_states > 0);
    const double split_bytes = sizing.mean_blocks * static_cast<double>(budget.block_bytes()) +
                               sizing.mean_states * static_cast<double>(budget.state_bytes);
    CHECK(split_bytes <= 1.001 * static_cast<double>(budget.bytes));
  }
}

TEST_CASE("the split for separate pools is the mean over the second half of the requests") {
  Workload workload(512);
  for (BlockIdentity own = 1; own <= 4; ++own) workload.add({.input_tokens = 1024}, std::vector{own, own + 10});
  const auto mean_blocks = [&](std::int64_t requests) {
    return size_cache(workload, requests, budget, PolicyKind::branch, {}, [] { return true; }).mean_blocks;
  };
  REQUIRE(mean_blocks(1) > 0);
  CHECK(mean_blocks(4) == doctest::Approx(3.5 * mean_blocks(1)));
}

TEST_CASE("the tokens saved per GiB more add up to the hits") {
  const Sizing sizing = size(PolicyKind::branch);
  double tokens = 0;
  std::int64_t before = 0;
  for (const Sizing::Step& step : sizing.steps) {
    tokens += step.tokens_per_gib * static_cast<double>(step.bytes - before) / static_cast<double>(gib);
    before = step.bytes;
    if (step.bytes != budget.bytes) continue;
    CHECK(tokens == doctest::Approx(static_cast<double>(sizing.hit_tokens)));
    CHECK(step.token_hit_rate == sizing.token_hit_rate);
  }
}

TEST_CASE("sizing gives the worth of host memory below the budget, as a replay with it") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 400});
  for (const std::int64_t host_bytes : {std::int64_t{0}, 2 * gib}) {
    CAPTURE(host_bytes);
    Budget below = budget;
    below.host_bytes = host_bytes;
    const Sizing sizing = size_cache(workload, 400, below, PolicyKind::node_lru, {}, [] { return true; });
    const std::int64_t whole = host_bytes > 0 ? host_bytes : budget.bytes;
    REQUIRE(sizing.host_steps.size() == 6);
    CHECK(sizing.host_steps.front().bytes == whole / 2);
    CHECK(sizing.host_steps.back().bytes == 4 * whole);
    const auto hits_with = [&](std::int64_t bytes) {
      Budget part = budget;
      part.host_bytes = bytes;
      const std::vector<PolicyKind> policies = {PolicyKind::node_lru};
      return sweep(workload, 400, part, std::vector<std::int64_t>{part.bytes}, policies, {}, [] { return true; })
          .front();
    };
    auto tokens = static_cast<double>(hits_with(0).hit_tokens);
    std::int64_t before = 0;
    for (const Sizing::Step& step : sizing.host_steps) {
      CAPTURE(step.bytes);
      tokens += step.tokens_per_gib * static_cast<double>(step.bytes - before) / static_cast<double>(gib);
      before = step.bytes;
      const SweepCell cell = hits_with(step.bytes);
      CHECK(step.token_hit_rate == cell.token_hit_rate);
      CHECK(tokens == doctest::Approx(static_cast<double>(cell.hit_tokens)));
      if (step.bytes == host_bytes) CHECK(cell.hit_tokens == sizing.hit_tokens);
    }
    CHECK(sizing.host_steps.back().token_hit_rate > hits_with(0).token_hit_rate);
  }
  CHECK(size(PolicyKind::branch).host_steps.empty());
}

TEST_CASE("sizing leaves out host memories that hold no state and block") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 50});
  Budget below = budget;
  below.host_bytes = budget.state_bytes + budget.block_bytes();
  const Sizing sizing = size_cache(workload, 50, below, PolicyKind::hix, {}, [] { return true; });
  REQUIRE(sizing.host_steps.size() == 4);
  CHECK(sizing.host_steps.front().bytes == below.host_bytes);
}

TEST_CASE("a sizing has the hits that a trace recorded beside those of the budget") {
  const Workload generated = generate_workload({.kind = WorkloadKind::chat, .requests = 400});
  Workload recorded(512);
  std::int64_t requests = 0, input_tokens = 0, hit_tokens = 0;
  for (std::size_t i = 0; i < generated.size(); ++i) {
    Request request = generated.request(i);
    if (i % 3 != 0) {
      request.recorded_hit_tokens = static_cast<std::int64_t>(i) % request.input_tokens;
      ++requests;
      input_tokens += request.input_tokens;
      hit_tokens += request.recorded_hit_tokens;
    }
    recorded.add(request, generated.blocks(i));
  }
  const Sizing sizing = size_cache(recorded, 400, budget, PolicyKind::hix, {}, [] { return true; });
  CHECK(sizing.hit_tokens == size(PolicyKind::hix).hit_tokens);
  const auto json = nlohmann::json::parse(to_json({.command = "size"}, sizing));
  CHECK(json["recorded_requests"] == requests);
  CHECK(json["recorded_input_tokens"] == input_tokens);
  CHECK(json["recorded_hit_tokens"] == hit_tokens);
  const std::int64_t replayed = sizing.recorded.replayed_tokens;
  CHECK(replayed > 0);
  CHECK(replayed < sizing.hit_tokens);
  CHECK(json["replayed_hit_tokens"] == replayed);
  CHECK(json["hit_tokens_difference"] == replayed - hit_tokens);
  const auto rate = [&](std::int64_t tokens) {
    return 100 * static_cast<double>(tokens) / static_cast<double>(input_tokens);
  };
  CHECK(to_text(sizing).find(fmt::format("recorded: {:.2f} % of the tokens of {} requests hit in life, {:.2f} % here\n",
                                         rate(hit_tokens), requests, rate(replayed))) != std::string::npos);
  CHECK(!nlohmann::json::parse(to_json({.command = "size"}, size(PolicyKind::hix))).contains("recorded_requests"));
}

TEST_CASE("the text and the JSON of a sizing have the same figures") {
  const Sizing sizing = size(PolicyKind::hix);
  const auto json = nlohmann::json::parse(to_json({.command = "size"}, sizing));
  CHECK(json["token_hit_rate"] == sizing.token_hit_rate);
  CHECK(json["requests"] == 400);
  CHECK(json["input_tokens"] == sizing.input_tokens);
  CHECK(json["steps"].size() == sizing.steps.size());
  const std::string text = to_text(sizing);
  CHECK(text.find(fmt::format("400 requests, {} input tokens\n", sizing.input_tokens)) == 0);
  CHECK(text.find("8.00 GiB as one budget, policy hix") != std::string::npos);
  REQUIRE(json["host_steps"].size() == sizing.host_steps.size());
  for (std::size_t i = 0; i < sizing.host_steps.size(); ++i) {
    const Sizing::Step& step = sizing.host_steps[i];
    CHECK(json["host_steps"][i]["bytes"] == step.bytes);
    CHECK(json["host_steps"][i]["token_hit_rate"] == step.token_hit_rate);
    CHECK(json["host_steps"][i]["tokens_per_gib"] == step.tokens_per_gib);
    std::array<char, 64> row = {};
    std::snprintf(row.data(), row.size(), "%14.2f %28.0f\n", 100 * step.token_hit_rate, step.tokens_per_gib);
    CHECK(text.find(row.data(), text.find("host below")) != std::string::npos);
  }
}
