// SPDX-License-Identifier: Apache-2.0
#include "workload/workload.hpp"

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using stateport::InvalidArgument;
using namespace stateport::replay;

namespace {
using Blocks = std::vector<BlockIdentity>;
Blocks blocks_of_request(const Workload& workload, std::size_t index) {
  return {workload.blocks(index).begin(), workload.blocks(index).end()};
}
}  // namespace

TEST_CASE("the first requests of a workload are a workload") {
  Workload workload(4);
  const std::vector<BlockIdentity> blocks = {1, 2, 3};
  for (const std::int64_t blocks_of_prompt : {2, 3, 1})
    workload.add({.arrival_ms = blocks_of_prompt, .input_tokens = 4 * blocks_of_prompt}, blocks);
  for (std::size_t requests = 0; requests < 5; ++requests) {
    const Workload first = workload.first(requests);
    REQUIRE(first.size() == std::min<std::size_t>(requests, 3));
    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(first.request(i).arrival_ms == workload.request(i).arrival_ms);
      CHECK(first.blocks(i).size() == workload.blocks(i).size());
    }
  }
  CHECK(workload.first(1).longest_blocks() == 2);
}

TEST_CASE("a workload keeps the full blocks of a prompt and drops the partial one") {
  Workload workload(10);
  workload.add({.input_tokens = 25}, Blocks{1, 2, 3});
  workload.add({.input_tokens = 20}, Blocks{1, 2});
  workload.add({.input_tokens = 9}, Blocks{});
  CHECK(workload.size() == 3);
  CHECK(blocks_of_request(workload, 0) == Blocks{1, 2});
  CHECK(blocks_of_request(workload, 1) == Blocks{1, 2});
  CHECK(blocks_of_request(workload, 2).empty());
  CHECK(workload.total_blocks() == 4);
  CHECK(workload.longest_blocks() == 2);
  CHECK(workload.distinct_blocks() == 2);
}

TEST_CASE("distinct blocks are counted by prefix, not by identity alone") {
  Workload workload(1);
  workload.add({.input_tokens = 3}, Blocks{7, 7, 7});
  workload.add({.input_tokens = 2}, Blocks{8, 7});
  CHECK(workload.distinct_blocks() == 5);
}

TEST_CASE("the last turns are those whose blocks no later prompt can continue") {
  Workload workload(10);
  workload.add({.input_tokens = 15}, Blocks{1});     // continued by the third
  workload.add({.input_tokens = 25}, Blocks{2, 1});  // no other request begins with 2, 1
  workload.add({.input_tokens = 31}, Blocks{1, 3, 4});
  workload.add({.input_tokens = 31}, Blocks{1, 3, 4});  // the same again, which uses the third's end
  workload.add({.input_tokens = 30}, Blocks{1, 3, 4});  // needs a token of the last block: does not use the fourth's
  workload.add({.input_tokens = 5}, Blocks{});          // has no block that could be used
  workload.give_hints({.last_turns = true});
  std::vector<bool> last;
  for (std::size_t i = 0; i < workload.size(); ++i) last.push_back(workload.request(i).hint.last_turn);
  CHECK(last == std::vector{false, true, false, true, true, false});
}

TEST_CASE("hints follow from the next prompt that continues, if they are asked for") {
  Workload workload(10);
  workload.add({.arrival_ms = 1000, .input_tokens = 15, .session = 0}, Blocks{1});
  workload.add({.arrival_ms = 11'000, .input_tokens = 25, .session = 0}, Blocks{1, 2});
  workload.add({.arrival_ms = 51'000, .input_tokens = 35}, Blocks{1, 2, 3});
  const auto hint = [&](std::size_t index) -> const stateport::ReuseHint& { return workload.request(index).hint; };
  workload.give_hints({.tool_calls = true, .idle_times = true, .sessions = true});
  CHECK(hint(0).tool_call_pending);
  CHECK_FALSE(hint(1).tool_call_pending);
  CHECK(hint(0).expected_idle_s == 5);
  CHECK(hint(1).expected_idle_s == 20);
  CHECK(hint(2).expected_idle_s == 0);
  CHECK(hint(0).session != 0);
  CHECK(hint(0).session == hint(1).session);
  CHECK(hint(2).session == 0);
  CHECK_FALSE(hint(2).last_turn);
  workload.give_hints({.last_turns = true});
  CHECK_FALSE(hint(0).tool_call_pending);
  CHECK(hint(0).expected_idle_s == 0);
  CHECK(hint(0).session == 0);
  CHECK(hint(2).last_turn);
}

TEST_CASE("a simulated classifier has the area under its ROC curve that was asked for, and likely means likely") {
  for (const double area : {0.2, 0.5, 0.75, 0.95}) {
    CAPTURE(area);
    Workload workload(10);
    constexpr BlockIdentity prompts = 4000;
    for (BlockIdentity i = 0; i < prompts; ++i) workload.add({.input_tokens = 15}, Blocks{i});
    for (BlockIdentity i = 0; i < prompts; i += 4) workload.add({.input_tokens = 25}, Blocks{i, prompts + i});
    workload.give_hints({.continues_auc = area});
    std::vector<double> goes_on, ends;
    double expected = 0;
    for (std::size_t i = 0; i < workload.size(); ++i) {
      const double chance = workload.request(i).hint.continues;
      REQUIRE(chance > 0);
      REQUIRE(chance < 1);
      const bool continued = i < prompts && i % 4 == 0;
      (continued ? goes_on : ends).push_back(chance);
      expected += chance;
    }
    std::ranges::sort(ends);
    double above = 0;
    for (const double chance : goes_on) {
      const auto [low, high] = std::ranges::equal_range(ends, chance);
      above += static_cast<double>(low - ends.begin()) + static_cast<double>(high - low) / 2;
    }
    const double pairs = static_cast<double>(goes_on.size()) * static_cast<double>(ends.size());
    CHECK(above / pairs == doctest::Approx(area).epsilon(0.03));
    if (area >= 0.5) CHECK(expected == doctest::Approx(static_cast<double>(goes_on.size())).epsilon(0.1));
  }
}

TEST_CASE("a workload refuses a request that makes no sense and stays as it was") {
  CHECK_THROWS_AS(Workload(0), InvalidArgument);
  Workload workload(10);
  CHECK_THROWS_AS(workload.add({.input_tokens = 0}, Blocks{}), InvalidArgument);
  CHECK_THROWS_AS(workload.add({.input_tokens = 20}, Blocks{1}), InvalidArgument);
  CHECK_THROWS_AS(workload.add({.arrival_ms = -1}, Blocks{}), InvalidArgument);
  CHECK_THROWS_AS(workload.add({.output_tokens = -1}, Blocks{}), InvalidArgument);
  CHECK(workload.size() == 0);
  CHECK(workload.total_blocks() == 0);
}
