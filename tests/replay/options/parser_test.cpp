// SPDX-License-Identifier: Apache-2.0
#include "options/parser.hpp"

#include "../sizes.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

using namespace stateport;
using namespace stateport::replay;
using stateport::replay::test::gib;

namespace {

/// Takes the text that the parser prints, as long as it lives.
class Printed {
 public:
  Printed() : out_(std::cout.rdbuf(text_.rdbuf())), error_(std::cerr.rdbuf(text_.rdbuf())) {}
  Printed(const Printed&) = delete;
  Printed& operator=(const Printed&) = delete;
  ~Printed() {
    std::cout.rdbuf(out_);
    std::cerr.rdbuf(error_);
  }
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* out_;
  std::streambuf* error_;
};

struct Parsed {
  std::optional<Command> command;
  int exit_code = 0;
  std::string text;
};

/// `line`: words between blanks.
Parsed parse(const std::string& line) {
  std::vector<std::string> words = {"stateport-replay"};
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const Printed printed;
  Parsed parsed;
  parsed.command = parse_command(static_cast<int>(arguments.size()), arguments.data(), parsed.exit_code);
  parsed.text = printed.text();
  return parsed;
}

template <class Options>
Options parsed(const std::string& line) {
  CAPTURE(line);
  const Parsed parsed = parse(line);
  INFO(parsed.text);
  REQUIRE(parsed.command);
  REQUIRE(std::holds_alternative<Options>(*parsed.command));
  return std::get<Options>(*parsed.command);
}

void check_refused(const std::string& line, const std::string& text) {
  CAPTURE(line);
  const Parsed parsed = parse(line);
  CHECK_FALSE(parsed.command);
  CHECK(parsed.exit_code == 2);
  CAPTURE(parsed.text);
  CHECK(parsed.text.find(text) != std::string::npos);
}

const std::string nodes = "fleet --nodes 2 --memory 4GiB --prefill-rate 5 ";

}  // namespace

TEST_CASE("without a command the options are those of prompts") {
  for (const std::string command : {"", "prompts "}) {
    const auto options = parsed<PromptsOptions>(command + "--requests 7 --cache tree --slots 9 --checkpoint last");
    CHECK(options.common.workload.requests_max == 7);
    CHECK(options.pools.cache == CacheKind::tree);
    CHECK(options.pools.slots == 9);
    CHECK(options.checkpoint == CheckpointPlacement::last);
  }
  CHECK(parsed<PromptsOptions>("").pools.slots == 256);
}

TEST_CASE("each command has its own defaults") {
  CHECK(parsed<PromptsOptions>("").states.materialize_bytes == 2 * gib);
  CHECK(parsed<PromptsOptions>("").pools.cache == CacheKind::slots);
  CHECK(parsed<PromptsOptions>("").common.workload.generator.requests == 3000);
  CHECK(parsed<ServeOptions>("serve").states.materialize_bytes == gib / 16);
  CHECK(parsed<ServeOptions>("serve").common.workload.generator.requests == 100);
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB").memory.cache == CacheKind::tree);
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB").memory.policy == PolicyKind::hix);
  CHECK(parsed<SizeOptions>("size --memory 4GiB --cache slots").memory.policy == PolicyKind::slots_lru);
  CHECK(parsed<FleetRunOptions>(nodes).routes.size() == 3);
  CHECK(parsed<FleetRunOptions>(nodes).sample_nodes == -1);
}

TEST_CASE("nodes of a fleet have a schedule, of one request at a time where none is named") {
  CHECK(parsed<FleetRunOptions>(nodes).schedule.concurrency == 1);
  const ScheduleOptions schedule =
      parsed<FleetRunOptions>(nodes +
                              "--concurrency 9 --max-running 4 --step-tokens 2048 --refresh --share-running 64:7")
          .schedule;
  CHECK(schedule.concurrency == 9);
  CHECK(schedule.running_max == 4);
  CHECK(schedule.step_tokens_max == 2048);
  CHECK(schedule.refresh);
  CHECK(schedule.share_running.least_tokens == 64);
  CHECK(schedule.share_running.longest_commits == 7);
  for (const std::string option : {"--max-running 1", "--step-tokens 2048", "--refresh", "--share-running 64"})
    check_refused(nodes + option, "needs --concurrency 2 or more");
  check_refused(nodes + "--concurrency 2 --max-running 3", "more requests than --concurrency has");
}

TEST_CASE("positions are for hix") {
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB --positions 99").memory.positions == 99);
  CHECK(parsed<SizeOptions>("size --memory 4GiB").memory.positions == 0);
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB --cache slots --policy hix --positions 9").memory.positions == 9);
  for (const std::string policy : {"gdsf", "hix-exact"})
    check_refused("budget --memory 4GiB --policy " + policy + " --positions 99", "--positions: is for hix");
  check_refused("budget --memory 4GiB --positions 0", "--positions");
}

TEST_CASE("a flood and shares of tenants are read") {
  const std::string shares = "--flood 2.5 --quiet-floor 1GiB --flood-most 2GiB";
  for (const TenantOptions& tenants : {parsed<ServeOptions>("serve " + shares).common.tenants,
                                       parsed<BudgetOptions>("budget --memory 4GiB " + shares).common.tenants}) {
    CHECK(tenants.flood == 2.5);
    CHECK(tenants.quiet_floor_bytes == gib);
    CHECK(tenants.flood_most_bytes == 2 * gib);
    CHECK(tenants.quotas() == 2);
  }
  CHECK(parsed<ServeOptions>("serve").common.tenants.quotas() == 0);
  check_refused("serve --quiet-floor 1GiB", "--flood");
  check_refused("serve --flood-most 1GiB", "--flood");
  check_refused("serve --flood nan", "--flood");
  check_refused("serve --flood 0", "--flood");
  check_refused("sweep --memory 4GiB --flood 2", "--flood: is an option of serve, budget, not of sweep");
  check_refused("budget --memory 4GiB --flood 2 --compare", "--flood");
  for (const std::string option : {"--quiet-floor", "--flood-most"})
    check_refused("budget --memory 4GiB --flood 2 --policy last " + option + " 1GiB",
                  "is for a policy of RequestCache");
}

TEST_CASE("options with units and parts are read") {
  CHECK(parsed<SweepOptions>("sweep --memory 1GiB,2GiB").memory_bytes == std::vector{gib, 2 * gib});
  const auto budget = parsed<BudgetOptions>(
      "budget --memory 4GiB --cache slots --policy gdsf --host 8GiB --host-bandwidth 50GB --prefill-rate 1e4 --disk "
      "a:b:1TiB --disk-bandwidth 5GiB --compare");
  CHECK(budget.memory.bytes == 4 * gib);
  CHECK(budget.memory.policy == PolicyKind::slots_gdsf);
  CHECK(budget.memory.speeds.host_bytes_per_s == 5e10);
  CHECK(budget.memory.disk_bytes == 1024 * gib);
  CHECK(budget.disk_folder == "a:b");
  CHECK(budget.compare);
  const auto fleet = parsed<FleetRunOptions>(
      nodes +
      "--remote 1TiB --link 25:20 --write-back --route prefix,session --sample 1:3 --node-failures 60:10 --load 2");
  CHECK(fleet.memory.speeds.remote_bytes_per_s == 25e9);
  CHECK(fleet.memory.speeds.remote_latency_s == doctest::Approx(20e-6));
  CHECK(fleet.routes == std::vector{Route::prefix, Route::session});
  CHECK(fleet.sample_nodes == 1);
  CHECK(fleet.samples == 3);
  CHECK(fleet.mean_life_s == 60);
  CHECK(fleet.down_s == 10);
  const auto serve = parsed<ServeOptions>("serve --cache align --draft 3 --accept 0.5 --counters async");
  CHECK(serve.pools.cache == CacheKind::align);
  CHECK(serve.drafts == 3);
  CHECK(serve.asynchronous);
  CHECK(serve.tail_tokens == 0);
  CHECK(parsed<ServeOptions>("serve --tail").tail_tokens == 64);
  const auto named = parsed<ServeOptions>("serve --workload template --tail=32 --breakpoints");
  CHECK(named.tail_tokens == 32);
  CHECK_FALSE(named.close_sessions);
  const auto closing = parsed<ServeOptions>("serve --close-sessions --mistaken-closes 2.5");
  CHECK(closing.close_sessions);
  CHECK(closing.mistaken_closes == 2.5);
  CHECK(named.breakpoints);
  CHECK(named.common.workload.generator.kind == WorkloadKind::chat_template);
  CHECK(parsed<PromptsOptions>("--checkpoint-dtype int8").common.model.checkpoint_type == ElementType::int8_block32);
  CHECK_FALSE(parsed<PromptsOptions>("--checkpoint-dtype model").common.model.checkpoint_type);
}

TEST_CASE("requests at a time wait for a place, look again and wait for each other as the command line says") {
  const ScheduleOptions none = parsed<ServeOptions>("serve").schedule;
  CHECK(none.concurrency == 8);
  CHECK(none.running_max == 0);
  CHECK(none.step_tokens_max == 8192);
  CHECK_FALSE(none.refresh);
  CHECK(none.share_running.least_tokens == 0);
  const auto serve = parsed<ServeOptions>(
      "serve --workload grpo --concurrency 64 --max-running 16 --step-tokens 2048 --refresh --share-running 128");
  CHECK(serve.common.workload.generator.kind == WorkloadKind::grpo);
  CHECK(serve.schedule.concurrency == 64);
  CHECK(serve.schedule.running_max == 16);
  CHECK(serve.schedule.step_tokens_max == 2048);
  CHECK(serve.schedule.refresh);
  CHECK(serve.schedule.share_running.least_tokens == 128);
  CHECK(serve.schedule.share_running.longest_commits == ShareRunning{}.longest_commits);
  CHECK(parsed<ServeOptions>("serve --share-running 1:30").schedule.share_running.longest_commits == 30);
  CHECK(parsed<FleetRunOptions>(nodes + "--workload burst").common.workload.generator.kind == WorkloadKind::burst);
  for (const std::string wrong : {"0", "-3", "x", "9:0", "9:x", "9:"})
    check_refused("serve --share-running " + wrong, "--share-running");
  check_refused("serve --concurrency 0", "--concurrency");
  check_refused("serve --concurrency 4 --max-running 5", "--max-running: more requests than --concurrency has");
}

TEST_CASE("one request at a time waits for no other: options for that are refused") {
  for (const std::string option : {"--refresh", "--share-running 64", "--max-running 1"}) {
    const std::string name = option.substr(0, option.find(' '));
    check_refused("serve --concurrency 1 " + option, name + ": needs --concurrency 2 or more");
    for (const std::string command :
         {"prompts ", "budget --memory 4GiB ", "sweep --memory 4GiB ", "size --memory 4GiB "})
      check_refused(command + option, name + ": is an option of serve, fleet, not of ");
  }
}

TEST_CASE("help is answered for the program and for each command") {
  for (const std::string command : {"", "prompts ", "serve ", "budget ", "sweep ", "size ", "fleet "}) {
    const Parsed parsed = parse(command + "--help");
    CHECK_FALSE(parsed.command);
    CHECK(parsed.exit_code == 0);
    CHECK(parsed.text.find(command.empty() ? "sweep" : "--trace") != std::string::npos);
  }
}

TEST_CASE("an option of another command is refused with the commands that take it") {
  for (const std::string option : {"--remote 1TiB", "--link 25:20", "--route session", "--load 2", "--sample 3",
                                   "--node-failures 9:9", "--imbalance 5", "--event-delay 1", "--write-back"})
    for (const std::string command : {"", "budget --memory 4GiB "})
      check_refused(command + option, option.substr(0, option.find(' ')) + ": is an option of fleet, not of " +
                                          (command.empty() ? "prompts" : "budget"));
  check_refused("serve --checkpoint last", "--checkpoint: is an option of prompts, not of serve");
  check_refused("--counters async", "--counters: is an option of serve, not of prompts");
  check_refused("--host 1GiB", "--host: is an option of budget, size, fleet, not of prompts");
  check_refused("size --memory 4GiB --slots=10", "--slots: is an option of prompts, serve, not of size");
  check_refused(nodes + "--materialize 64MiB", "--materialize: is an option of prompts, serve, budget, not of fleet");
  check_refused("--requests 10 size --memory 4GiB", "size: is a command, which comes first");
  check_refused("--budget 4GiB", "--budget: is now --memory of budget, size and fleet");
  check_refused("--cache tree --serve", "--serve: is now the command serve");
  check_refused("budget --memory 4GiB --report page.html", "--report: is now stateport-report");
  check_refused("budget --budget 4GiB", "--budget: is now --memory of budget, size and fleet");
  check_refused("size --budget=4GiB", "--budget: is now --memory of budget, size and fleet");
  check_refused("--no-such-option", "--no-such-option");
  check_refused(
      "sizes --memory 4GiB",
      "sizes is no command; the commands are prompts, serve, budget, sweep, size, fleet\n`stateport-replay --help`");
}

TEST_CASE("an error names the help of its command") {
  check_refused("budget --memory 0", "`stateport-replay budget --help` lists the options.");
  check_refused("--no-such-option", "`stateport-replay prompts --help` lists the options.");
}

TEST_CASE("values that are not named are refused with those that are") {
  check_refused("--cache btree", "--cache: btree is none of slots, tree\n");
  check_refused("--cache 1", "--cache: 1 is none of slots, tree\n");
  check_refused("serve --cache 1", "--cache: 1 is none of slots, tree, align, tree-align\n");
  check_refused("--cache align --requests 3",
                "--cache: align is none of slots, tree; it is an index of the command serve");
  check_refused("--checkpoint 0", "--checkpoint: 0 is none of every, last, branch, rungs\n");
  check_refused("--hash md5", "--hash: md5 is none of sha256, xxh3_128\n");
  CHECK(parsed<PromptsOptions>("--cache TREE").pools.cache == CacheKind::tree);
}

TEST_CASE("options that an index does not have are refused") {
  check_refused("serve --draft 2", "--draft: needs --cache align");
  check_refused("serve --cache align --blocks 9", "--blocks: means nothing with --cache align");
  check_refused("serve --cache tree-align --hash sha256", "--hash: means nothing with --cache tree-align");
  check_refused("serve --cache align --checkpoint-dtype bf16", "--checkpoint-dtype: means nothing with --cache align");
  check_refused("serve --cache align --policy hix", "--policy: means nothing with --cache align");
  check_refused("serve --trace /dev/null --seed 2", "--seed: with --trace needs --cache align");
  check_refused("budget --memory 4GiB --cache align", "--cache");
  check_refused("--trace /dev/null --seed 2", "--seed");
}

TEST_CASE("policies are refused where they are unknown, and where they have no tiers") {
  check_refused(
      "--policy node-lru",
      "--policy: node-lru is no policy of blocks and slots; it is one of the commands budget, size and fleet");
  check_refused("--policy random", "--policy: random is no policy of blocks and slots\n");
  check_refused("budget --memory 4GiB --policy lru", "--policy: lru is no policy of --cache tree");
  check_refused("size --memory 4GiB --cache slots --policy node-lru", "node-lru is no policy of --cache slots");
  check_refused("budget --memory 1GiB --policy last --host 1GiB", "last has no tiers");
  check_refused(nodes + "--policy last", "last has no tiers");
}

TEST_CASE("a memory is counted together, one arena, or has walls") {
  CHECK(parsed<SweepOptions>("sweep --memory 4GiB --arena 2048").division.arena_tokens == 2048);
  CHECK(parsed<SweepOptions>("sweep --memory 4GiB --walls 0.4").division.state_share == 0.4);
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB --arena 512 --materialize 0").memory.division.arena_tokens == 512);
  check_refused("sweep --memory 4GiB --arena 2048 --walls 0.4", "excludes");
  check_refused("sweep --memory 4GiB --arena 0", "--arena");
  check_refused("sweep --memory 4GiB --walls 1", "--walls");
  check_refused("budget --memory 4GiB --arena 512", "it needs --materialize 0");
  check_refused("budget --memory 4GiB --policy last --walls 0.5", "is for a policy of RequestCache");
  check_refused("size --memory 4GiB --arena 512", "--arena");
}

TEST_CASE("hints are refused where the order ignores them") {
  check_refused("--hint-sessions --slots 10", "--hint-sessions: order lru ignores hints");
  check_refused("serve --cache tree --policy gdsf --hint-continues 0.8", "--hint-continues: order gdsf ignores hints");
  check_refused("serve --cache align --hint-last-turns", "--hint-last-turns: --cache align takes no hints");
  check_refused("budget --memory 4GiB --policy node-lru --hint-idle-times", "order node-lru ignores hints");
  check_refused("size --memory 4GiB --cache slots --hint-sessions", "order slots-lru ignores hints");
  check_refused(nodes + "--policy gdsf --hint-sessions", "order gdsf ignores hints");
  CHECK(parsed<PromptsOptions>("--cache tree --hint-sessions").common.workload.hints.sessions);
  CHECK(parsed<PromptsOptions>("--policy hix --hint-sessions").common.workload.hints.sessions);
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB --policy hix-exact --hint-sessions").common.workload.hints.any());
  CHECK(parsed<BudgetOptions>("budget --memory 4GiB --policy gdsf --compare --hint-sessions").compare);
  CHECK(parsed<SweepOptions>("sweep --memory 4GiB --hint-sessions").common.workload.hints.sessions);
}

TEST_CASE("missing and doubled options are refused") {
  check_refused("budget", "--memory is required");
  check_refused("sweep", "--memory is required");
  check_refused("size --requests 10", "--memory is required");
  check_refused("fleet --memory 4GiB --prefill-rate 5", "--nodes is required");
  check_refused("fleet --nodes 2 --prefill-rate 5", "--memory is required");
  check_refused("fleet --nodes 2 --memory 4GiB", "--prefill-rate is required");
  check_refused("--unlimited --slots 10", "excludes");
  check_refused("--skip-bad", "--skip-bad requires --trace");
}

TEST_CASE("the speeds of all tiers are given or none") {
  check_refused("budget --memory 1GiB --host 1GiB --prefill-rate 5",
                "--host-bandwidth: is needed with the other speeds");
  check_refused("budget --memory 1GiB --prefill-rate 5", "--prefill-rate: needs --host or --disk");
  check_refused("budget --memory 1GiB --host 1GiB --host-bandwidth 5GB --prefill-rate 5 --disk-bandwidth 5",
                "--disk-bandwidth: needs --disk");
  check_refused("size --memory 1GiB --prefill-rate 5", "--host-bandwidth: is needed");
  check_refused(nodes + "--host 1GiB", "--host-bandwidth: is needed");
  check_refused(nodes + "--remote 1TiB", "--remote requires --link");
  check_refused(nodes + "--link 25:20", "--link requires --remote");
  check_refused(nodes + "--write-back", "--write-back requires --remote");
}

TEST_CASE("values that are none are refused") {
  check_refused("budget --memory 1GiB --disk 1GiB", "--disk: needs a folder");
  check_refused("budget --memory 1GiB --disk images:", "Input is empty");
  check_refused("budget --memory 0", "--memory");
  check_refused("size --memory 1GiB --disk images:1GiB", "--disk");
  check_refused(nodes + "--disk images:8GiB --disk-bandwidth 2GB", "--disk");
  check_refused("fleet --nodes 0 --memory 4GiB --prefill-rate 5", "--nodes");
  check_refused(nodes + "--sample 3", "--sample: more nodes than there are");
  check_refused(nodes + "--remote 1TiB --link 25", "--link");
  check_refused(nodes + "--remote 1TiB --link 25:-1", "--link");
  check_refused(nodes + "--node-failures 0:5", "--node-failures");
  check_refused(nodes + "--route nearest", "--route");
  check_refused("--checkpoint-dtype fp8", "--checkpoint-dtype");
  check_refused("serve --cache align --accept nan", "--accept");
}
