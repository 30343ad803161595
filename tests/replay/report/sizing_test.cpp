// SPDX-License-Identifier: Apache-2.0
#include "report/sizing.hpp"

#include "report/json.hpp"
#include "report/sweep.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

using namespace stateport::replay;

namespace {

constexpr std::int64_t gib = std::int64_t{1} << 30;
constexpr Budget budget = {
    .bytes = 8 * gib, .state_bytes = 77'266'944, .kv_bytes_per_token = 24'576, .block_size_tokens = 512};

Sizing size(PolicyKind policy) {
  return size_cache(generate_workload({.kind = WorkloadKind::chat, .requests = 400}), 400, budget, policy, {},
                    [] { return true; });
}

}  // namespace

TEST_CASE("sizing expects what a replay with that budget finds, below the ceiling, and a split that fits") {
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

TEST_CASE("the text and the JSON of a sizing have the same figures") {
  const Sizing sizing = size(PolicyKind::hix);
  const auto json = nlohmann::json::parse(to_json(sizing));
  CHECK(json["token_hit_rate"] == sizing.token_hit_rate);
  CHECK(json["steps"].size() == sizing.steps.size());
  CHECK(to_text(sizing).find("8.00 GiB as one budget, policy hix") != std::string::npos);
}
