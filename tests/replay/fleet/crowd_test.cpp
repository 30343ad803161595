// SPDX-License-Identifier: Apache-2.0
#include "fleet/crowd.hpp"

#include <stateport/core/model/error.hpp>

#include "../fleet_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::InvalidArgument;

namespace {

std::vector<BlockIdentity> blocks_of(const Workload& workload, std::size_t request) {
  return {workload.blocks(request).begin(), workload.blocks(request).end()};
}

}  // namespace

TEST_CASE("a crowd of one load is the workload") {
  const Workload workload = made_up(WorkloadKind::chat, 300);
  const Conversations conversations = find_conversations(workload);
  const Crowd crowd = make_crowd(workload, conversations, {});
  REQUIRE(crowd.workload.size() == workload.size());
  CHECK(crowd.conversations == conversations.of);
  for (std::size_t i = 0; i < workload.size(); ++i) {
    CHECK(blocks_of(crowd.workload, i) == blocks_of(workload, i));
    CHECK(crowd.workload.request(i).arrival_ms == workload.request(i).arrival_ms);
    CHECK(crowd.workload.request(i).input_tokens == workload.request(i).input_tokens);
  }
}

TEST_CASE("requests of one session, and no others, have one conversation") {
  const Workload workload = made_up(WorkloadKind::agent, 400);
  const Conversations conversations = find_conversations(workload);
  std::map<std::int64_t, std::uint64_t> names;
  for (std::size_t i = 0; i < workload.size(); ++i)
    CHECK(names.try_emplace(workload.request(i).session, conversations.of[i]).first->second == conversations.of[i]);
  std::set<std::uint64_t> different;
  for (const auto& [session, conversation] : names) different.insert(conversation);
  CHECK(different.size() == names.size());
}

TEST_CASE("without sessions the block behind a shared opening names the conversation") {
  Workload workload(4);
  const auto add = [&](std::vector<BlockIdentity> blocks) {
    workload.add({.input_tokens = 4 * std::ssize(blocks) + 1}, blocks);
  };
  for (BlockIdentity first = 100; first < 117; ++first) add({1, 2, first});  // 17 conversations behind an opening
  add({1, 2, 100, 7});
  add({1, 2, 100, 8});
  add({1, 2, 101, 7});
  add({1, 2});  // ends with the opening: by itself
  add({1, 2});
  add({50, 51});  // another opening, which is of one conversation
  add({50, 52});
  add({});
  add({});
  const std::vector<std::uint64_t> of = find_conversations(workload).of;
  CHECK(std::set(of.begin(), of.begin() + 17).size() == 17);
  CHECK(of[17] == of[0]);
  CHECK(of[18] == of[0]);
  CHECK(of[19] == of[1]);
  CHECK(of[22] == of[23]);
  CHECK(std::set(of.begin(), of.end()).size() == 17 + 2 + 1 + 2);
}

TEST_CASE("the shared blocks of a prompt are those that another conversation has, too") {
  Workload workload(4);
  const auto add = [&](std::int64_t session, std::vector<BlockIdentity> blocks) {
    workload.add({.input_tokens = 4 * std::ssize(blocks), .session = session}, blocks);
  };
  add(1, {1, 2, 3});
  add(1, {1, 2, 3, 4});
  add(2, {1, 2, 9});
  add(3, {5});
  CHECK(find_conversations(workload).shared_blocks == std::vector<std::int32_t>{2, 2, 2, 0});
}

TEST_CASE("copies share the prefixes that conversations share, and nothing else") {
  const Workload workload = made_up(WorkloadKind::shared_prompt, 200);
  const Conversations conversations = find_conversations(workload);
  const Crowd crowd = make_crowd(workload, conversations, {.load = 3});
  REQUIRE(crowd.workload.size() == 3 * workload.size());
  for (std::size_t i = 1; i < crowd.workload.size(); ++i)
    CHECK(crowd.workload.request(i - 1).arrival_ms <= crowd.workload.request(i).arrival_ms);
  std::set<std::uint64_t> names(crowd.conversations.begin(), crowd.conversations.end());
  const std::set<std::uint64_t> before(conversations.of.begin(), conversations.of.end());
  CHECK(names.size() == 3 * before.size());
  // Each copy has blocks of its own, but for the shared ones: counts the different blocks.
  std::set<BlockIdentity> shared;
  std::set<BlockIdentity> all;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const auto blocks = workload.blocks(i);
    all.insert(blocks.begin(), blocks.end());
    shared.insert(blocks.begin(), blocks.begin() + conversations.shared_blocks[i]);
  }
  CHECK(crowd.workload.distinct_blocks() == std::ssize(shared) + 3 * (std::ssize(all) - std::ssize(shared)));
}

TEST_CASE("a part of a load has whole conversations, about as many as asked for") {
  const Workload workload = made_up(WorkloadKind::chat, 3000);
  const Conversations conversations = find_conversations(workload);
  std::map<std::uint64_t, int> wanted;
  for (const std::uint64_t name : conversations.of) ++wanted[name];
  const auto check = [&](const CrowdOptions& options, double part) {
    const Crowd crowd = make_crowd(workload, conversations, options);
    std::map<std::uint64_t, int> found;
    for (const std::uint64_t name : crowd.conversations) ++found[name];
    for (const auto& [name, requests] : found) REQUIRE(wanted[name] == requests);
    const auto all = static_cast<double>(wanted.size());
    CHECK(std::abs(static_cast<double>(found.size()) - part * all) < 4 * std::sqrt(all * part * (1 - part)));
    return found;
  };
  const auto once = check({.load = 0.3}, 0.3);
  CHECK(check({.load = 1, .part = 0.25, .seed = 1}, 0.25) != check({.load = 1, .part = 0.25, .seed = 2}, 0.25));
  CHECK(check({.load = 0.5, .part = 0.5}, 0.25) == check({.load = 0.5, .part = 0.5}, 0.25));
}

TEST_CASE("a flood serves the workload several times beside it, and shares nothing with it") {
  const Workload quiet = made_up(WorkloadKind::shared_prompt, 200);
  const Workload both = add_flood(quiet, 3);
  REQUIRE(both.size() == 4 * quiet.size());
  Workload flood(quiet.block_size_tokens());
  std::size_t next = 0;
  std::map<std::int64_t, std::int64_t> sessions;
  for (std::size_t i = 0; i < both.size(); ++i) {
    const Request& request = both.request(i);
    if (i > 0) {
      const Request& before = both.request(i - 1);
      CHECK(std::pair(before.arrival_ms, before.tenant) <= std::pair(request.arrival_ms, request.tenant));
    }
    ++sessions[request.session];
    if (request.tenant == Tenant::quiet) {
      CHECK(blocks_of(both, i) == blocks_of(quiet, next));
      CHECK(request.session == quiet.request(next++).session);
    } else {
      CHECK(request.tenant == Tenant::flood);
      flood.add(request, both.blocks(i));
    }
  }
  CHECK(next == quiet.size());
  const Crowd crowd = make_crowd(quiet, find_conversations(quiet), {.load = 3});
  CHECK(flood.distinct_blocks() == crowd.workload.distinct_blocks());
  CHECK(both.distinct_blocks() == quiet.distinct_blocks() + flood.distinct_blocks());
  std::set<std::int64_t> quiet_sessions;
  for (std::size_t i = 0; i < quiet.size(); ++i) quiet_sessions.insert(quiet.request(i).session);
  CHECK(sessions.size() == 4 * quiet_sessions.size());
  CHECK_THROWS_AS(static_cast<void>(add_flood(quiet, 0)), InvalidArgument);
}

TEST_CASE("a crowd of no load, or of a part that is none, is refused") {
  const Workload workload = made_up(WorkloadKind::chat, 3);
  const Conversations conversations = find_conversations(workload);
  for (const double load : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    CHECK_THROWS_AS(static_cast<void>(make_crowd(workload, conversations, {.load = load})), InvalidArgument);
  for (const double part : {0.0, 1.5, std::nan("")})
    CHECK_THROWS_AS(static_cast<void>(make_crowd(workload, conversations, {.part = part})), InvalidArgument);
}
