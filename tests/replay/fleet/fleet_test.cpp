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

/// Every token is computed or hit in one tier, and the caches count the same. Of nodes with several requests in flight
/// the device may have got tokens that a load was asked for: then the sums alone are the same.
void check_conservation(const Workload& workload, const FleetCounts& counts, bool one_at_a_time = true) {
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
  // A request whose node fails before it begins is counted by no cache, although it may have loaded something.
  const std::int64_t hits = sum(counts, &NodeCounts::hit_tokens);
  CHECK((failed ? counts.all_hit_tokens() <= hits : counts.all_hit_tokens() == hits));
  if (!one_at_a_time) return;
  std::int64_t loaded = 0;
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    std::int64_t tokens = 0;
    for (const NodeCounts& node : counts.nodes) tokens += node.tiers[static_cast<std::size_t>(medium)].hit_tokens;
    loaded += tokens;
    CHECK((failed ? of(counts, medium) <= tokens : of(counts, medium) == tokens));
  }
  CHECK((failed || of(counts, Medium::device) == hits - loaded));
}

ScheduleOptions random_schedule(std::mt19937_64& random) {
  const auto concurrency = static_cast<std::int32_t>(2 + random() % 8);
  return {.concurrency = concurrency,
          .running_max = static_cast<std::int32_t>(random() % 2 == 0 ? 0 : 1 + random() % 2),
          .step_tokens_max = block * static_cast<std::int64_t>(1 + random() % 40),
          .refresh = random() % 2 == 0,
          .share_running = {.least_tokens = random() % 2 == 0 ? 0 : static_cast<std::int64_t>(1 + random() % 2000),
                            .longest_commits = static_cast<std::int32_t>(1 + random() % 50)}};
}

/// Prompts with one opening of eight blocks and a block of their own, all at once.
constexpr std::int64_t opening_blocks = 8;
Workload at_once(std::int64_t requests) {
  Workload workload(block);
  for (std::int64_t i = 0; i < requests; ++i) {
    std::vector<BlockIdentity> blocks;
    for (BlockIdentity b = 1; b <= opening_blocks; ++b) blocks.push_back(b);
    blocks.push_back(static_cast<BlockIdentity>(1000 + i));
    workload.add({.input_tokens = (opening_blocks + 1) * block + 1}, blocks);
  }
  return workload;
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

TEST_CASE("prompts that come at once are computed once by a node if they wait") {
  constexpr std::int64_t requests = 6;
  constexpr std::int64_t opening = opening_blocks * block;
  constexpr std::int64_t prompt = opening + block + 1;
  const Workload workload = at_once(requests);
  FleetQuestion question = small_fleet(1, Route::round_robin);
  const double rate = question.node.speeds.tokens_per_s;
  const auto after = [&](std::int64_t tokens) { return doctest::Approx(static_cast<double>(tokens) / rate); };
  for (const PolicyKind policy : {PolicyKind::node_lru, PolicyKind::slots_lru}) {
    CAPTURE(name(policy));
    question.policy = policy;
    question.schedule = {.concurrency = 1};
    // Looked up when it begins: the second prompt leaves the first one, and makes a state there.
    CHECK(run_fleet(workload, question).all_hit_tokens() == (requests - 2) * opening);
    question.schedule = {.concurrency = requests, .step_tokens_max = 2 * block};
    const FleetCounts alone = run_fleet(workload, question);
    CHECK(alone.all_hit_tokens() == 0);
    CHECK(alone.first_token_s.back() == after(requests * prompt));
    question.schedule.share_running.least_tokens = 1;
    const FleetCounts awaited = run_fleet(workload, question);
    CHECK(awaited.all_hit_tokens() == (requests - 1) * opening);
    CHECK(sum(awaited, &NodeCounts::awaited_tokens) == awaited.all_hit_tokens());
    CHECK(awaited.first_token_s.back() == after(prompt + (requests - 1) * (prompt - opening)));
    check_conservation(workload, awaited);
    question.schedule.share_running.least_tokens = opening + 1;  // more than they share
    CHECK(run_fleet(workload, question).all_hit_tokens() == 0);
  }
}

TEST_CASE("a node that looks a prompt up again when it begins reuses tokens that others computed meanwhile") {
  constexpr std::int64_t requests = 6;
  const Workload workload = same_prompt(std::vector<std::int64_t>(requests, 0));
  FleetQuestion question = small_fleet(1, Route::round_robin);
  question.schedule = {.concurrency = requests, .running_max = 1};
  for (const PolicyKind policy : {PolicyKind::node_lru, PolicyKind::slots_lru}) {
    CAPTURE(name(policy));
    question.policy = policy;
    question.schedule.refresh = false;
    CHECK(run_fleet(workload, question).all_hit_tokens() == 0);
    question.schedule.refresh = true;
    const FleetCounts refreshed = run_fleet(workload, question);
    CHECK(refreshed.all_hit_tokens() == (requests - 1) * prompt_blocks * block);
    CHECK(sum(refreshed, &NodeCounts::awaited_tokens) == 0);
    check_conservation(workload, refreshed);
  }
}

TEST_CASE("passes compute no more tokens than they may, of the prompts that came first") {
  const Workload workload = at_once(3);
  constexpr std::int64_t prompt = (opening_blocks + 1) * block + 1;
  FleetQuestion question = small_fleet(1, Route::round_robin);
  question.schedule = {.concurrency = 3, .step_tokens_max = 4 * block};
  const FleetCounts counts = run_fleet(workload, question);
  // Of passes of four blocks: 4 | 4 | end, 3 | 4 | 2 and end, 2 | 4 | 3 and end. The last token of a prompt counts as a
  // quarter.
  REQUIRE(counts.first_token_s.size() == 3);
  const double pass_s = 4 * block / question.node.speeds.tokens_per_s;
  const double all_s = 3 * prompt / question.node.speeds.tokens_per_s;
  CHECK(counts.first_token_s[2] == doctest::Approx(all_s));
  for (std::size_t i = 0; i < 2; ++i) {
    const double least_s = static_cast<double>(i + 1) * prompt / question.node.speeds.tokens_per_s;
    CHECK(counts.first_token_s[i] >= least_s * (1 - 1e-9));
    CHECK(counts.first_token_s[i] <= least_s + pass_s);
  }
}

TEST_CASE("requests that run at once have room for their KV beyond that of the workload") {
  constexpr std::int64_t requests = 6;
  const Workload workload = same_prompt(std::vector<std::int64_t>(requests, 0));
  FleetQuestion question = small_fleet(1, Route::round_robin);
  question.schedule = {.concurrency = requests, .step_tokens_max = requests * prompt_tokens};
  const FleetCounts counts = run_fleet(workload, question);
  REQUIRE(std::ssize(counts.first_token_s) == requests);
  // The first one begins alone. One pass computes the others.
  for (std::size_t i = 1; i < requests; ++i)
    CHECK(counts.first_token_s[i] == doctest::Approx(requests * prompt_tokens / question.node.speeds.tokens_per_s));
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
    if (chance(2)) question.schedule = random_schedule(random);
    const FleetCounts counts = run_fleet(workload, question);
    check_conservation(workload, counts, question.schedule.concurrency == 1);
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
  refused([](FleetOptions& options) { options.node.schedule.concurrency = 2; }, "node.schedule.concurrency");
  refused([](FleetOptions& options) { options.node.schedule.concurrency = options.node.cache.max_requests = 0; },
          "node.schedule.concurrency");
  refused(
      [](FleetOptions& options) {
        options.node.schedule = {.concurrency = 2, .step_tokens_max = block - 1};
        options.node.cache.max_requests = 2;
      },
      "node.schedule.step_tokens_max");
}
