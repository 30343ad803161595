// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet.hpp"

#include <stateport/core/model/error.hpp>

#include "../fleet_world.hpp"
#include "caches/replayer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::Medium;

namespace {

constexpr std::int64_t block = 512;
constexpr std::int64_t prompt_blocks = 20;
constexpr std::int64_t prompt_tokens = prompt_blocks * block + 100;

/// Requests with one prompt, or with several in turn.
Workload same_prompt(const std::vector<std::int64_t>& arrivals_s, BlockIdentity prompts = 1) {
  Workload workload(block);
  BlockIdentity prompt = 0;
  for (const std::int64_t at_s : arrivals_s) {
    std::vector<BlockIdentity> blocks;
    for (BlockIdentity i = 0; i < prompt_blocks; ++i) blocks.push_back(1000 * (prompt % prompts) + i + 1);
    workload.add({.arrival_ms = 1000 * at_s, .input_tokens = prompt_tokens}, blocks);
    ++prompt;
  }
  return workload;
}

std::int64_t of(const FleetCounts& counts, Medium medium) {
  return counts.hit_tokens[static_cast<std::size_t>(medium)];
}

template <class Member>
auto sum(const FleetCounts& counts, Member member) {
  auto total = NodeCounts{}.*member;
  for (const NodeCounts& node : counts.nodes) total += node.*member;
  return total;
}

/// Every token is computed or hit in one tier, and the caches count the same.
void check_conservation(const Workload& workload, const FleetCounts& counts) {
  REQUIRE(counts.requests == static_cast<std::int64_t>(workload.size()));
  std::int64_t input = 0;
  for (std::size_t i = 0; i < workload.size(); ++i) input += workload.request(i).input_tokens;
  CHECK(counts.input_tokens == input);
  CHECK(sum(counts, &NodeCounts::requests) == counts.requests);
  CHECK(sum(counts, &NodeCounts::input_tokens) == input);
  CHECK(counts.all_hit_tokens() <= input);
  CHECK(std::ssize(counts.first_token_s) == counts.requests);
  CHECK(std::ssize(counts.uncached_first_token_s) == counts.requests);
  CHECK(sum(counts, &NodeCounts::stored_bytes) == counts.remote.added_bytes);
  CHECK(counts.remote.added_bytes - counts.remote.evicted_bytes == counts.remote_resident_bytes);
  const bool failed = sum(counts, &NodeCounts::failures) > 0;
  std::int64_t loaded = 0;
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    std::int64_t tokens = 0;
    for (const NodeCounts& node : counts.nodes) tokens += node.tiers[static_cast<std::size_t>(medium)].hit_tokens;
    loaded += tokens;
    CHECK((failed ? of(counts, medium) <= tokens : of(counts, medium) == tokens));
  }
  // A request whose node fails before it begins is counted by no cache, although it may have loaded something.
  const std::int64_t hits = sum(counts, &NodeCounts::hit_tokens);
  CHECK((failed ? counts.all_hit_tokens() <= hits : of(counts, Medium::device) == hits - loaded));
}

/// Totals of a replay without simulated time.
struct Replayed {
  ReplayCounts counts;
  CacheCounts cache;
};

Replayed replay_fleet(const Workload& workload, const FleetQuestion& question) {
  const auto cache = make_budget_cache(question.policy, question.node, question.cost, workload);
  NoPasses none;
  Replayer replayer(workload, *cache, none);
  replayer.run([](std::int64_t) { return true; });
  return {replayer.counts(), cache->counts()};
}

}  // namespace

TEST_CASE("one node without a remote tier serves as the replay does") {
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
    for (const PolicyKind policy : {PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix, PolicyKind::slots_lru})
      for (const int tiers : {0, 1, 2, 3}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(name(policy));
        CAPTURE(tiers);
        const Workload workload = made_up(kind, 300);
        FleetQuestion question = small_fleet(1, Route::round_robin);
        question.policy = policy;
        question.node.speeds.host_bytes_per_s = 50e9;
        question.node.speeds.file_bytes_per_s = 2e9;
        if ((tiers & 1) != 0) question.node.host_bytes = 4 * gib;
        if ((tiers & 2) != 0) question.node.file_bytes = 8 * gib;
        const Replayed expected = replay_fleet(workload, question);
        const FleetCounts fleet = run_fleet(workload, question);
        CHECK(fleet.requests == 300);
        CHECK(fleet.requests_hit == expected.counts.requests_hit);
        CHECK(fleet.input_tokens == expected.counts.input_tokens);
        CHECK(fleet.all_hit_tokens() == expected.counts.hit_tokens);
        CHECK(fleet.lost_hits == expected.counts.lost_hits);
        CHECK(fleet.nodes.front().evicted_states == expected.cache.state_evictions);
        for (const Medium medium : {Medium::host, Medium::file}) {
          CHECK(fleet.nodes.front().tiers[static_cast<std::size_t>(medium)] == expected.cache.of(medium));
          CHECK(fleet.hit_tokens[static_cast<std::size_t>(medium)] == expected.cache.of(medium).hit_tokens);
        }
        CHECK(fleet.hit_tokens[static_cast<std::size_t>(Medium::remote)] == 0);
        CHECK(fleet.nodes.front().link_bytes == 0);
      }
}

TEST_CASE("a second node hits prefixes that the first one computed") {
  const Workload workload = same_prompt({0, 100});
  FleetQuestion question = small_fleet(2, Route::round_robin);
  CHECK(run_fleet(workload, question).all_hit_tokens() == 0);
  question.remote_bytes = 16 * gib;
  const FleetCounts counts = run_fleet(workload, question);
  CHECK(of(counts, Medium::remote) == prompt_blocks * block);
  CHECK(counts.all_hit_tokens() == prompt_blocks * block);
  CHECK(counts.nodes[1].tiers[static_cast<std::size_t>(Medium::remote)].hit_tokens == prompt_blocks * block);
}

TEST_CASE("times are those of the link and of computing") {
  const Workload workload = same_prompt({0, 100});
  FleetQuestion question = small_fleet(2, Route::round_robin);
  CHECK(run_fleet(workload, question).first_token_s[0] == prompt_tokens / question.node.speeds.tokens_per_s);
  question.remote_bytes = 16 * gib;
  question.node.speeds.remote_bytes_per_s = 1e9;
  question.node.speeds.remote_latency_s = 0.001;
  const FleetCounts counts = run_fleet(workload, question);
  const double rate = question.node.speeds.tokens_per_s;
  CHECK(counts.first_token_s[0] == doctest::Approx(0.001 + prompt_tokens / rate));  // it asks in vain
  // States are asked for, then KV, and both are loaded.
  const auto loaded_bytes =
      static_cast<double>(prompt_blocks * question.node.block_bytes() + question.node.state_bytes);
  const double loaded_s = 3 * 0.001 + loaded_bytes / 1e9;
  CHECK(counts.first_token_s[1] == doctest::Approx(loaded_s + (prompt_tokens - prompt_blocks * block) / rate));
  CHECK(counts.waited_s == doctest::Approx(0.001 + loaded_s));
  for (const double time_s : counts.uncached_first_token_s) CHECK(time_s == doctest::Approx(prompt_tokens / rate));
  CHECK(counts.nodes[1].read_bytes == static_cast<std::int64_t>(loaded_bytes));
}

TEST_CASE("an image that the remote store has is not sent again") {
  const Workload workload = same_prompt({0, 10'000, 20'000});
  FleetQuestion question = small_fleet(2, Route::round_robin);
  question.remote_bytes = 16 * gib;
  question.node.speeds.remote_bytes_per_s = 1e6;  // so that the second node computes the prompt, too
  const FleetCounts counts = run_fleet(workload, question);
  CHECK(counts.all_hit_tokens() == prompt_blocks * block);  // of the first node, which has it on its device
  CHECK(counts.nodes[0].link_bytes == counts.remote.added_bytes);
  CHECK(counts.nodes[1].link_bytes == 0);
  CHECK(counts.nodes[1].stored_again == counts.remote.added_images);
}

TEST_CASE("two nodes that store an image at the same time both send it, and it is there once") {
  const Workload workload = same_prompt({0, 0});
  FleetQuestion question = small_fleet(2, Route::round_robin);
  question.remote_bytes = 16 * gib;
  const FleetCounts counts = run_fleet(workload, question);
  CHECK(counts.all_hit_tokens() == 0);
  for (const NodeCounts& node : counts.nodes) CHECK(node.link_bytes > 0);
  CHECK(sum(counts, &NodeCounts::stored_bytes) == counts.remote.added_bytes);
}

TEST_CASE("a link that is slower than computing is not used for loads") {
  const Workload workload = made_up(WorkloadKind::agent, 200);
  FleetQuestion question = small_fleet(4, Route::round_robin);
  const FleetCounts without = run_fleet(workload, question);
  question.remote_bytes = 1024 * gib;
  CHECK(of(run_fleet(workload, question), Medium::remote) > 0);
  question.node.speeds.remote_bytes_per_s = 1e7;
  const FleetCounts slow = run_fleet(workload, question);
  CHECK(of(slow, Medium::remote) == 0);
  CHECK(sum(slow, &NodeCounts::read_bytes) == 0);
  check_conservation(workload, slow);
  CHECK(slow.requests_hit == without.requests_hit);
}

TEST_CASE("an image that was evicted is gone for who remembers it") {
  const Workload workload = made_up(WorkloadKind::agent, 400);
  FleetQuestion question = small_fleet(4, Route::round_robin);
  question.remote_bytes = 8 * gib;
  const FleetCounts counts = run_fleet(workload, question);
  check_conservation(workload, counts);
  CHECK(counts.remote.evicted_images > 0);
  CHECK(sum(counts, &NodeCounts::lost_images) > 0);
  CHECK(counts.failed_loads > 0);
  CHECK(of(counts, Medium::remote) > 0);
}

TEST_CASE("without write-through only a node's victims go to the remote store") {
  const Workload workload = made_up(WorkloadKind::agent, 200);
  FleetQuestion question = small_fleet(2, Route::session);
  question.remote_bytes = 1024 * gib;
  const FleetCounts through = run_fleet(workload, question);
  question.write_back = true;
  const FleetCounts back = run_fleet(workload, question);
  check_conservation(workload, back);
  CHECK(back.remote.added_bytes > 0);
  CHECK(back.remote.added_bytes < through.remote.added_bytes);
}

TEST_CASE("failures lose only the node's own content") {
  std::vector<std::int64_t> arrivals_s;
  for (std::int64_t at = 0; at < 20; ++at) arrivals_s.push_back(100'000 * at);
  const Workload workload = same_prompt(arrivals_s);
  FleetQuestion question = small_fleet(1, Route::round_robin);
  CHECK(of(run_fleet(workload, question), Medium::device) == 19 * prompt_blocks * block);
  question.mean_life_s = 5000;  // some twenty failures between two prompts
  question.down_s = 10;
  const FleetCounts device = run_fleet(workload, question);
  CHECK(device.nodes.front().failures > 100);
  CHECK(device.all_hit_tokens() == 0);
  question.node.host_bytes = 16 * gib;
  CHECK(run_fleet(workload, question).all_hit_tokens() == 0);
  FleetQuestion remote = question;
  remote.remote_bytes = 16 * gib;
  CHECK(of(run_fleet(workload, remote), Medium::remote) == 19 * prompt_blocks * block);
}

TEST_CASE("files are there again when their node is") {
  std::vector<std::int64_t> arrivals_s;
  for (std::int64_t at = 0; at < 20; ++at) arrivals_s.push_back(100'000 * at);
  // Two prompts in turn, and a device that holds one: the other one is in files.
  const Workload workload = same_prompt(arrivals_s, 2);
  FleetQuestion question = small_fleet(1, Route::round_robin);
  question.node.bytes = prompt_blocks * question.node.block_bytes() + 2 * question.node.state_bytes;
  question.node.file_bytes = 16 * gib;
  const FleetCounts always_up = run_fleet(workload, question);
  CHECK(of(always_up, Medium::file) == 18 * prompt_blocks * block);
  question.mean_life_s = 300'000;
  question.down_s = 10;
  const FleetCounts counts = run_fleet(workload, question);
  check_conservation(workload, counts);
  CHECK(counts.nodes.front().failures >= 3);  // each would cost two hits
  CHECK(of(counts, Medium::file) >= 16 * prompt_blocks * block);
}

TEST_CASE("requests of a node that fails are sent to others, and wait if there are none") {
  for (const std::size_t nodes : {1U, 3U}) {
    const Workload workload = made_up(WorkloadKind::chat, 400);
    FleetQuestion question = small_fleet(nodes, Route::session);
    question.node.speeds.tokens_per_s = 2000;  // so that many wait
    question.mean_life_s = 60;
    question.down_s = 20;
    const FleetCounts counts = run_fleet(workload, question);
    check_conservation(workload, counts);
    CHECK(counts.rerouted_requests > 0);
    CHECK(std::ranges::all_of(counts.first_token_s, [](double time_s) { return time_s > 0; }));
  }
}

TEST_CASE("a router that hears late sends to the wrong nodes") {
  const Workload workload = made_up(WorkloadKind::agent, 400);
  FleetQuestion question = small_fleet(6, Route::prefix);
  const FleetCounts now = run_fleet(workload, question);
  question.event_delay_s = 1e9;
  const FleetCounts never = run_fleet(workload, question);
  check_conservation(workload, never);
  CHECK(never.all_hit_tokens() < now.all_hit_tokens());
  const FleetCounts by_turns = run_fleet(workload, small_fleet(6, Route::round_robin));
  CHECK(by_turns.all_hit_tokens() < now.all_hit_tokens());
}

TEST_CASE("fleets of all kinds keep their books right, and repeat exactly") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto chance = [&](std::uint64_t of) { return random() % of == 0; };
    const auto kind = std::vector{WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt}[random() % 3];
    const Workload workload = made_up(kind, static_cast<std::int64_t>(random() % 150), seed);
    const Route route = std::vector{Route::round_robin, Route::session, Route::prefix}[random() % 3];
    FleetQuestion question = small_fleet(1 + random() % 6, route);
    question.policy = std::vector{PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix, PolicyKind::slots_lru,
                                  PolicyKind::slots_hix}[random() % 5];
    question.node.bytes = static_cast<std::int64_t>(1 + random() % 4) * gib;
    question.node.speeds.host_bytes_per_s = 50e9;
    question.node.speeds.file_bytes_per_s = chance(3) ? 1e8 : 5e9;
    if (chance(2)) question.node.host_bytes = static_cast<std::int64_t>(1 + random() % 4) * gib;
    if (chance(2)) question.node.file_bytes = static_cast<std::int64_t>(1 + random() % 8) * gib;
    if (!chance(4)) question.remote_bytes = static_cast<std::int64_t>(1 + random() % 64) * gib;
    question.node.speeds.remote_bytes_per_s = chance(3) ? 5e8 : 1e10;
    question.node.speeds.remote_latency_s = chance(2) ? 0 : 1e-3;
    question.write_back = chance(2);
    question.imbalance_tokens = static_cast<std::int64_t>(random() % 100'000);
    question.event_delay_s = chance(2) ? 0 : static_cast<double>(random() % 100);
    question.mean_life_s = chance(2) ? 0 : 30 + static_cast<double>(random() % 300);
    question.down_s = static_cast<double>(random() % 60);
    question.seed = seed;
    const FleetCounts counts = run_fleet(workload, question);
    check_conservation(workload, counts);
    const FleetCounts again = run_fleet(workload, question);
    CHECK(again.first_token_s == counts.first_token_s);
    CHECK(again.hit_tokens == counts.hit_tokens);
    CHECK(again.remote.added_bytes == counts.remote.added_bytes);
    CHECK(sum(again, &NodeCounts::link_bytes) == sum(counts, &NodeCounts::link_bytes));
    CHECK(sum(again, &NodeCounts::failures) == sum(counts, &NodeCounts::failures));
  }
}

TEST_CASE("a fleet refuses invalid options and names them") {
  const Workload workload = made_up(WorkloadKind::chat, 5);
  const Crowd crowd = make_crowd(workload, find_conversations(workload), {});
  const auto refused = [&](const auto& change, const char* name) {
    FleetOptions options = fleet_options(small_fleet(2, Route::session), crowd, Route::session);
    change(options);
    CHECK_THROWS_WITH_AS(Fleet(crowd, options), doctest::Contains(name), stateport::InvalidArgument);
  };
  refused([](FleetOptions& options) { options.nodes = 0; }, "nodes");
  refused([](FleetOptions& options) { options.imbalance_tokens = -1; }, "imbalance_tokens");
  refused([](FleetOptions& options) { options.remote_bytes = -1; }, "remote_bytes");
  refused([](FleetOptions& options) { options.event_delay_s = -1; }, "event_delay_s");
  refused([](FleetOptions& options) { options.mean_life_s = std::nan(""); }, "mean_life_s");
  refused([](FleetOptions& options) { options.mean_life_s = 1e-3; }, "longest prompt");
  refused([](FleetOptions& options) { options.down_s = -1; }, "down_s");
  refused([](FleetOptions& options) { options.node.speeds.tokens_per_s = 0; }, "tokens_per_s");
  refused([](FleetOptions& options) { options.node.speeds.remote_latency_s = -1; }, "remote_latency_s");
  refused([](FleetOptions& options) { options.node.block_size_tokens = 16; }, "block_size_tokens");
  refused([](FleetOptions& options) { options.route = Route::prefix; }, "route");
}
