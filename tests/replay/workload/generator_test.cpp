// SPDX-License-Identifier: Apache-2.0
#include "workload/generator.hpp"

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

using namespace stateport::replay;

namespace {

/// One number that changes with every field of every request.
std::uint64_t digest(const Workload& workload) {
  std::uint64_t sum = 0;
  const auto take = [&sum](std::uint64_t value) { sum = mix(sum ^ mix(value + 1)); };
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const Request& request = workload.request(i);
    take(static_cast<std::uint64_t>(request.arrival_ms));
    take(static_cast<std::uint64_t>(request.input_tokens));
    take(static_cast<std::uint64_t>(request.output_tokens));
    take(static_cast<std::uint64_t>(request.session));
    for (const BlockIdentity identity : workload.blocks(i)) take(identity);
  }
  return sum;
}

/// Share of the blocks that an unlimited cache would have seen before.
double repeated_share(const Workload& workload) {
  return 1.0 - static_cast<double>(workload.distinct_blocks()) / static_cast<double>(workload.total_blocks());
}

constexpr WorkloadKind kinds[] = {WorkloadKind::chat,          WorkloadKind::agent, WorkloadKind::chat_template,
                                  WorkloadKind::shared_prompt, WorkloadKind::grpo,  WorkloadKind::burst};

}  // namespace

TEST_CASE("a seed gives the same workload on every platform") {
  CHECK(digest(generate_workload({.kind = WorkloadKind::chat, .requests = 500})) == 11857973213039783647U);
  CHECK(digest(generate_workload({.kind = WorkloadKind::agent, .requests = 500})) == 6144063001628724561U);
  CHECK(digest(generate_workload({.kind = WorkloadKind::shared_prompt, .requests = 500})) == 8940311080900142046U);
  CHECK(digest(generate_workload({.kind = WorkloadKind::grpo, .requests = 500})) == 5647751328802141120U);
  CHECK(digest(generate_workload({.kind = WorkloadKind::burst, .requests = 500})) == 14692842431374379176U);
  CHECK(digest(generate_workload({.requests = 500, .seed = 2})) != digest(generate_workload({.requests = 500})));
}

TEST_CASE("a workload has the requests asked for, in order of arrival, and a shorter one is its beginning") {
  for (const WorkloadKind kind : kinds) {
    const Workload workload = generate_workload({.kind = kind, .requests = 400});
    REQUIRE(workload.size() == 400);
    for (std::size_t i = 1; i < workload.size(); ++i)
      REQUIRE(workload.request(i - 1).arrival_ms <= workload.request(i).arrival_ms);
    const Workload shorter = generate_workload({.kind = kind, .requests = 100});
    for (std::size_t i = 0; i < shorter.size(); ++i)
      REQUIRE(shorter.request(i).input_tokens == workload.request(i).input_tokens);
    CHECK(generate_workload({.kind = kind, .requests = 0}).size() == 0);
  }
}

TEST_CASE("every kind repeats prefixes in its own measure") {
  const auto share = [](WorkloadKind kind) { return repeated_share(generate_workload({.kind = kind})); };
  const double chat = share(WorkloadKind::chat);
  const double agent = share(WorkloadKind::agent);
  const double shared_prompt = share(WorkloadKind::shared_prompt);
  CAPTURE(chat);
  CAPTURE(agent);
  CAPTURE(shared_prompt);
  CHECK((chat > 0.4 && chat < 0.9));
  CHECK((agent > 0.8 && agent < 0.99));
  CHECK((shared_prompt > 0.5 && shared_prompt < 0.99));
}

TEST_CASE("of a template the next turn shares what lies before the text that asks for the answer, and no more") {
  const Workload workload =
      generate_workload({.kind = WorkloadKind::chat_template, .requests = 400, .block_size_tokens = 1});
  std::map<std::int64_t, std::size_t> last;
  std::int64_t turns = 0, edits = 0;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const Request& request = workload.request(i);
    REQUIRE(request.left_at_tokens == request.input_tokens - 8);
    const auto before = last.find(request.session);
    if (before != last.end()) {
      const auto earlier = workload.blocks(before->second);
      const auto later = workload.blocks(i);
      const auto differs = std::ranges::mismatch(earlier, later).in1 - earlier.begin();
      const std::int64_t left_at = workload.request(before->second).left_at_tokens;
      ++(differs == left_at ? turns : edits);
      REQUIRE(differs <= left_at);
    }
    last[request.session] = i;
  }
  CHECK(turns > 8 * edits);
  CHECK(edits > 0);
}

TEST_CASE("a group has 16 samples of one prompt, which shares nothing with other groups") {
  const std::int64_t requests = requests_at_once(WorkloadKind::grpo).value();
  CHECK(requests == 64 * 16);
  const Workload workload =
      generate_workload({.kind = WorkloadKind::grpo, .requests = requests, .block_size_tokens = 1});
  std::set<BlockIdentity> first_blocks;
  std::int64_t other_answers = 0;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    REQUIRE(workload.request(i).arrival_ms == 0);
    first_blocks.insert(workload.blocks(i).front());
    if (i % 16 == 0) continue;
    REQUIRE(std::ranges::equal(workload.blocks(i), workload.blocks(i - 1)));
    other_answers += workload.request(i).output_tokens != workload.request(i - 1).output_tokens;
  }
  CHECK(first_blocks.size() == 64);
  CHECK(other_answers > requests * 9 / 10);
}

TEST_CASE("agents of a burst share an opening of 8192 tokens, and no token behind it") {
  const std::int64_t requests = requests_at_once(WorkloadKind::burst).value();
  CHECK(requests == 64);
  const Workload workload =
      generate_workload({.kind = WorkloadKind::burst, .requests = requests, .block_size_tokens = 1});
  for (std::size_t i = 0; i < workload.size(); ++i) {
    REQUIRE(workload.request(i).arrival_ms == 0);
    REQUIRE(workload.request(i).input_tokens > 8192);
    for (std::size_t j = 0; j < i; ++j) {
      const auto own = workload.blocks(i);
      REQUIRE(std::ranges::mismatch(own, workload.blocks(j)).in1 - own.begin() == 8192);
    }
  }
  CHECK_FALSE(requests_at_once(WorkloadKind::chat));
}

TEST_CASE("the block size changes how a workload is cut, not its prompts") {
  const Workload fine = generate_workload({.requests = 200, .block_size_tokens = 16});
  const Workload coarse = generate_workload({.requests = 200, .block_size_tokens = 512});
  for (std::size_t i = 0; i < fine.size(); ++i) {
    REQUIRE(fine.request(i).input_tokens == coarse.request(i).input_tokens);
    REQUIRE(static_cast<std::int64_t>(fine.blocks(i).size()) == fine.request(i).input_tokens / 16);
  }
}

TEST_CASE("the generator refuses options that make no sense") {
  CHECK_THROWS_AS((void)generate_workload({.requests = -1}), stateport::InvalidArgument);
  CHECK_THROWS_AS((void)generate_workload({.block_size_tokens = 0}), stateport::InvalidArgument);
}
