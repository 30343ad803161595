// SPDX-License-Identifier: Apache-2.0
#include "options/parser.hpp"

#include "options/finite_number.hpp"
#include "options/option_groups.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <ranges>
#include <utility>

namespace stateport::replay {
namespace {

// Lines short enough for 80 columns, whether this version of CLI11 wraps them or not.
constexpr const char* description =
    "Replays a serving workload through RequestCache, with states that are really\n"
    "made, copied and verified, or only counted. A stand-in for the model computes\n"
    "the tokens that no state covers. `stateport-replay COMMAND --help` lists the\n"
    "options of a command; without a command it is `prompts`.";

constexpr const char* prompts_description =
    "Serves prompts one at a time; each continues from the deepest state inside its longest cached prefix";
constexpr const char* serve_description =
    "Serves several requests at a time as an engine does: prompts in chunks, then answers";
constexpr const char* budget_description = "Serves prompts with one memory for KV and states, and tiers below it";
constexpr const char* sweep_description = "Serves prompts under every policy with each of several memories";
constexpr const char* size_description =
    "Estimates the worth of a memory for the workload, of more memory, and of host memory below it";
constexpr const char* fleet_description =
    "Simulates several nodes, each with a cache, and a store that they share; bytes are counted";

constexpr const char* footer =
    "Exit code: 0; 1 when a verified state was wrong; 2 when the run could not be\n"
    "done; 130 when interrupted. At the first Ctrl-C, prompts, serve, budget and\n"
    "sweep print the results so far; size and fleet end without any.\n"
    "docs/replay.md has the keys of the JSON, and the model of a fleet.";

/// Options that have become something else, and their successors.
constexpr std::array replaced = {std::pair("--budget", "is now --memory of budget, size and fleet"),
                                 std::pair("--sweep", "is now --memory of the command sweep"),
                                 std::pair("--serve", "is now the command serve"),
                                 std::pair("--report", "is now stateport-report, over the file of --json")};

/// Throws for the first of them.
void refuse_replaced(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    for (const auto& [name, successor] : replaced)
      if (argument.substr(0, argument.find('=')) == name) throw CLI::ValidationError(name, successor);
}

/// "A:B" as two numbers. False: it is none.
bool read_pair(const CLI::results_t& given, double& first, double& second) {
  const std::size_t colon = given.front().find(':');
  return colon != std::string::npos && CLI::detail::lexical_cast(given.front().substr(0, colon), first) &&
         CLI::detail::lexical_cast(given.front().substr(colon + 1), second) && first > 0 && second >= 0 &&
         std::isfinite(first) && std::isfinite(second);
}

/// Throws for every option of `names` that is given.
void refuse(const CLI::App& app, std::initializer_list<const char*> names, const char* why) {
  for (const char* option : names)
    if (app.count(option) > 0) throw CLI::ValidationError(option, why);
}

/// The command line, which fills in the options of one command.
class Parser {
 public:
  Parser() : app_(description, "stateport-replay") {
    app_.require_subcommand(1);
    app_.footer(footer);
    app_.failure_message([this](const CLI::App* app, const CLI::Error& error) {
      return given_.empty()
                 ? fmt::format("{}\n`{} --help` lists the commands.\n", error.what(), app->get_name())
                 : fmt::format("{}\n`{} {} --help` lists the options.\n", error.what(), app->get_name(), given_);
    });
    add_prompts();
    add_serve();
    add_budget();
    add_sweep();
    add_size();
    add_fleet();
  }

  Command parse(std::vector<std::string> arguments) {
    const std::string first = arguments.empty() ? "-" : arguments.front();
    if (first.starts_with('-') && first != "-h" && first != "--help") arguments.insert(arguments.begin(), "prompts");
    if (!first.starts_with('-') && !is_command(first))
      throw CLI::ValidationError(first + " is no command; the commands are " +
                                 names_of(std::as_const(app_).get_subcommands({})));
    if (!arguments.empty() && !arguments.front().starts_with('-')) given_ = arguments.front();
    refuse_replaced(arguments);
    std::ranges::reverse(arguments);
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::ExtrasError&) {
      explain_extras();
      throw;
    }
    return std::move(*command_);
  }
  int exit(const CLI::ParseError& error) { return app_.exit(error); }

 private:
  /// A command whose options are `options`; `check` completes them after parsing, and refuses the wrong ones.
  template <class Options, class Check>
  CLI::App& add_command(const char* name, const char* text, Options& options, Check check) {
    CLI::App* command = app_.add_subcommand(name, text);
    command->callback([this, command, &options, check] {
      check(*command);
      command_ = options;
    });
    return *command;
  }

  [[nodiscard]] bool is_command(const std::string& word) const {
    return !app_.get_subcommands([&](const CLI::App* command) { return command->get_name() == word; }).empty();
  }
  static std::string names_of(const std::vector<const CLI::App*>& commands) {
    return fmt::format("{}", fmt::join(commands | std::views::transform(&CLI::App::get_name), ", "));
  }

  /// Arguments that the command does not take: says which command takes them.
  void explain_extras() const {
    const CLI::App& given = *app_.get_subcommands().front();
    for (std::string word : given.remaining()) {
      word = word.substr(0, word.find('='));
      if (is_command(word)) throw CLI::ValidationError(word, "is a command, which comes first");
      const std::string owners = names_of(app_.get_subcommands([&](const CLI::App* command) {
        return word.starts_with("--") && command->get_option_no_throw(word) != nullptr;
      }));
      if (!owners.empty())
        throw CLI::ValidationError(word, fmt::format("is an option of {}, not of {}", owners, given.get_name()));
    }
  }

  void add_prompts() {
    CLI::App& app = add_command("prompts", prompts_description, prompts_,
                                [this](const CLI::App& given) { check_pools(given, prompts_.pools); });
    add_common(app, prompts_.common);
    add_cache(app, prompts_.pools.cache);
    add_choice<CheckpointPlacement, CheckpointPlacement>(
        app, "--checkpoint", prompts_.checkpoint,
        "Where states are kept: after every block; after the last full block; there and where the prompt left a cached "
        "prefix; also 1, 2 and 4 blocks before the end",
        {{"every", CheckpointPlacement::every},
         {"last", CheckpointPlacement::last},
         {"branch", CheckpointPlacement::branch},
         {"rungs", CheckpointPlacement::rungs}},
        " [branch]");
    add_pools(app, prompts_.pools, policy_);
    add_hints(app, prompts_.common.workload.hints);
    add_states(app, prompts_.states);
    add_prometheus(app, prompts_.prometheus_file);
  }

  void check_pools(const CLI::App& given, PoolOptions& pools) {
    choose_policy(policy_, pools);
    const EvictionOrder order = pools.order();
    if (order != EvictionOrder::hix) refuse_hints(given, fmt::format("order {} ignores hints", name(order)));
  }
  void check_memory(const CLI::App& given, bool wants_tiers, MemoryOptions& memory) {
    choose_policy(policy_, wants_tiers, memory);
    if (!takes_hints(memory.policy)) refuse_hints(given, fmt::format("order {} ignores hints", name(memory.policy)));
    if (!takes_hints(memory.policy) || memory.policy == PolicyKind::hix_exact)
      refuse(given, {"--positions"}, "is for hix, which learns from these; hix-exact learns from all");
  }

  static void check_schedule(const CLI::App& given, const ScheduleOptions& schedule) {
    if (schedule.concurrency == 1)
      refuse(given, {"--max-running", "--refresh", "--share-running"}, "needs --concurrency 2 or more");
    if (schedule.running_max > schedule.concurrency)
      throw CLI::ValidationError("--max-running", "more requests than --concurrency has");
  }

  void add_serve() {
    CLI::App& app = add_command("serve", serve_description, serve_, [this](const CLI::App& given) {
      const CacheKind cache = serve_.pools.cache;
      if (cache == CacheKind::align) {
        refuse_hints(given, "--cache align takes no hints");
        refuse(given, {"--policy"}, "means nothing with --cache align");
      } else {
        check_pools(given, serve_.pools);
      }
      if (in_columns(cache)) {
        refuse(
            given, {"--hash", "--blocks", "--checkpoint-dtype"},
            cache == CacheKind::align ? "means nothing with --cache align" : "means nothing with --cache tree-align");
      } else {
        refuse(given, {"--draft", "--accept"}, "needs --cache align or tree-align");
        if (given.count("--trace") > 0) refuse(given, {"--seed"}, "with --trace needs --cache align or tree-align");
      }
      check_schedule(given, serve_.schedule);
    });
    add_common(app, serve_.common, true);
    add_choice<CacheKind, CacheKind>(
        app, "--cache", serve_.pools.cache,
        "The cache: slots = index hash, states in slots; tree = index tree, states in slots; align = index hash, "
        "states in columns: a slot is a block; tree-align = index tree, states in columns",
        {{"slots", CacheKind::slots},
         {"tree", CacheKind::tree},
         {"align", CacheKind::align},
         {"tree-align", CacheKind::tree_align}},
        " [slots]");
    add_pools(app, serve_.pools, policy_);
    add_hints(app, serve_.common.workload.hints);
    app.add_option("--draft", serve_.drafts, "In columns: tokens proposed in a decode step")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    app.add_option("--accept", serve_.accept, "In columns: chance that a draft is kept, if the one before it is")
        ->check(finite_number())
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_flag("--tail{64}", serve_.tail_tokens,
                 "All prompts leave their last state before their last tokens, 64 without a number (--tail=32); "
                 "0: namespaces learn it, -1: none does [0]");
    app.add_flag(
        "--breakpoints", serve_.breakpoints,
        "Prompts name where the next one of their session leaves them, if the workload knows it: template does");
    auto* const closes = app.add_flag("--close-sessions", serve_.close_sessions,
                                      "Close sessions after their last request, if the workload names them: their "
                                      "contents are evicted first");
    app.add_option("--mistaken-closes", serve_.mistaken_closes,
                   "Also close the session after this share of its other requests, in per cent")
        ->check(finite_number())
        ->check(CLI::Range(0.0, 100.0))
        ->needs(closes)
        ->capture_default_str();
    add_choice<bool, bool>(app, "--counters", serve_.asynchronous,
                           "async = a pass is planned before the last one's count is known",
                           {{"sync", false}, {"async", true}}, " [sync]");
    add_schedule(app, serve_.schedule);
    add_tenants(app, serve_.common.tenants);
    add_states(app, serve_.states);
  }

  void add_budget() {
    CLI::App& app = add_command("budget", budget_description, budget_, [this](const CLI::App& given) {
      if (budget_.compare)  // hix is among the policies
        choose_policy(policy_, budget_.memory.has_tiers(), budget_.memory);
      else
        check_memory(given, budget_.memory.has_tiers(), budget_.memory);
      if (budget_.states.materialize_bytes > 0)
        refuse(given, {"--arena"},
               "serves prompts in many passes, whose states are not made: it needs --materialize 0");
      if (!has_tiers(budget_.memory.policy))
        refuse(given, {"--arena", "--walls", "--quiet-floor", "--flood-most"}, "is for a policy of RequestCache");
      if (budget_.states.materialize_bytes > 0 && budget_.disk_folder.empty())
        refuse(given, {"--disk"}, "needs a folder (FOLDER:BYTES), or --materialize 0");
      if (budget_.compare) refuse(given, {"--flood"}, "compares no tenants: it means nothing with --compare");
      check_speeds(given, budget_.memory, budget_.memory.host_bytes > 0, budget_.memory.has_tiers());
    });
    add_common(app, budget_.common);
    add_memory(app, budget_.memory, policy_);
    add_division(app, budget_.memory.division);
    add_tenants(app, budget_.common.tenants);
    const auto read_disk = [this](const CLI::results_t& given) {
      const std::size_t colon = given.front().rfind(':');
      std::string bytes = given.front().substr(colon == std::string::npos ? 0 : colon + 1);
      if (colon != std::string::npos) budget_.disk_folder = given.front().substr(0, colon);
      if (!CLI::AsSizeValue(false)(bytes).empty()) return false;
      return CLI::detail::lexical_cast(bytes, budget_.memory.disk_bytes) && budget_.memory.disk_bytes > 0;
    };
    app.add_option("--disk", read_disk,
                   "Files below the memory and the host, in a folder of their own (images:1TiB); with --materialize 0 "
                   "they are only counted")
        ->option_text("[FOLDER:]BYTES");
    add_hints(app, budget_.common.workload.hints);
    add_states(app, budget_.states);
    app.add_flag("--compare", budget_.compare,
                 "Also serve the prompts under every policy with a quarter to four times the memory, states not made");
    add_prometheus(app, budget_.prometheus_file);
  }

  void add_sweep() {
    CLI::App& app = add_command("sweep", sweep_description, sweep_, [](const CLI::App&) {});
    add_common(app, sweep_.common);
    as_bytes(*app.add_option("--memory", sweep_.memory_bytes, "For KV and states together, each with every policy"))
        .delimiter(',')
        ->option_text("BYTES,… REQUIRED")
        ->required();
    add_division(app, sweep_.division);
    add_cache(app, sweep_.cache);
    add_hints(app, sweep_.common.workload.hints);
  }

  void add_size() {
    CLI::App& app = add_command("size", size_description, size_, [this](const CLI::App& given) {
      check_memory(given, size_.memory.has_tiers(), size_.memory);
      check_speeds(given, size_.memory, true, true);
    });
    add_common(app, size_.common);
    add_memory(app, size_.memory, policy_);
    add_counted_disk(app, size_.memory);
    add_hints(app, size_.common.workload.hints);
  }

  void add_fleet() {
    CLI::App& app = add_command("fleet", fleet_description, fleet_, [this](const CLI::App& given) {
      check_memory(given, true, fleet_.memory);
      check_speeds(given, fleet_.memory, fleet_.memory.host_bytes > 0, true);
      check_schedule(given, fleet_.schedule);
      if (fleet_.schedule.concurrency == 1) refuse(given, {"--step-tokens"}, "needs --concurrency 2 or more");
      if (std::cmp_greater(fleet_.sample_nodes, fleet_.nodes))
        throw CLI::ValidationError("--sample", "more nodes than there are");
    });
    add_common(app, fleet_.common, true);
    constexpr std::size_t most_nodes = 1'000'000;
    app.add_option("--nodes", fleet_.nodes, "Nodes, each with a cache of --memory, --host and --disk")
        ->check(CLI::Range(std::size_t{1}, most_nodes))
        ->option_text("INT REQUIRED")
        ->required();
    add_memory(app, fleet_.memory, policy_);
    add_counted_disk(app, fleet_.memory);
    app.get_option("--prefill-rate")->required()->option_text("TOKENS/s REQUIRED");
    add_hints(app, fleet_.common.workload.hints);
    add_schedule(app, fleet_.schedule);
    add_remote(app);
    add_routes(app);
    add_simulation(app);
  }

  void add_remote(CLI::App& app) {
    CLI::Option& remote =
        as_bytes(*app.add_option("--remote", fleet_.remote_bytes,
                                 "A store that all nodes share; the least recently used image is evicted first"));
    const auto read_link = [this](const CLI::results_t& given) {
      double gb_per_s = 0;
      double latency_us = 0;
      if (!read_pair(given, gb_per_s, latency_us)) return false;
      fleet_.memory.speeds.remote_bytes_per_s = gb_per_s * 1e9;
      fleet_.memory.speeds.remote_latency_s = latency_us / 1e6;
      return true;
    };
    auto* link = app.add_option("--link", read_link,
                                "Of each node to the remote store, both directions together: bandwidth and latency")
                     ->option_text("GB/s:us")
                     ->needs(&remote);
    remote.needs(link);
    app.add_flag("--write-back", fleet_.write_back,
                 "A node sends a checkpoint to the remote store when it evicts it, not as soon as it is made")
        ->needs(&remote);
  }

  void add_routes(CLI::App& app) {
    add_choice<std::vector<Route>, Route>(
        app, "--route", fleet_.routes,
        "How requests find their node: one after the other; by a hash of the conversation; where, by the events of the "
        "caches, the deepest checkpoint is. Each of a list is simulated",
        {{"round-robin", Route::round_robin}, {"session", Route::session}, {"prefix", Route::prefix}}, ",… [all]")
        .delimiter(',');
    app.add_option("--imbalance", fleet_.imbalance_tokens,
                   "Route prefix: a node does not count where more tokens wait beyond the least of all")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--event-delay", fleet_.event_delay_s, "Route prefix: seconds until the router hears of an event")
        ->check(finite_number())
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
  }

  void add_simulation(CLI::App& app) {
    app.add_option("--load", fleet_.load,
                   "The workload this number of times at once, with conversations of their own that share prefixes as "
                   "those of the workload do; below 1: a part of its conversations")
        ->check(finite_number())
        ->check(CLI::Range(1e-6, 1e6))
        ->capture_default_str();
    const auto read_failures = [this](const CLI::results_t& given) {
      return read_pair(given, fleet_.mean_life_s, fleet_.down_s);
    };
    app.add_option("--node-failures", read_failures,
                   "Each node fails after this time on average, loses its device and its host, and comes back after "
                   "the second time with its files")
        ->option_text("MTBF_S:DOWN_S");
    const auto read_sample = [this](const CLI::results_t& given) {
      const std::size_t colon = given.front().find(':');
      if (!CLI::detail::lexical_cast(given.front().substr(0, colon), fleet_.sample_nodes) || fleet_.sample_nodes < 0)
        return false;
      return colon == std::string::npos ||
             (CLI::detail::lexical_cast(given.front().substr(colon + 1), fleet_.samples) && fleet_.samples >= 1);
    };
    app.add_option("--sample", read_sample,
                   "Simulate a part of the nodes with their part of the conversations and of the remote store, several "
                   "times; 0: all nodes")
        ->option_text("NODES[:TIMES] [32:8 for more than 128 nodes]");
  }

  CLI::App app_;
  std::string given_;   ///< name of the command; empty: none is known
  std::string policy_;  ///< of the command that is given; the index decides whether it is known
  PromptsOptions prompts_;
  ServeOptions serve_;
  BudgetOptions budget_;
  SweepOptions sweep_;
  SizeOptions size_;
  FleetRunOptions fleet_;
  std::optional<Command> command_;
};

}  // namespace

std::optional<Command> parse_command(int argc, char** argv, int& exit_code) {
  Parser parser;
  try {
    return parser.parse({argv + 1, argv + argc});
  } catch (const CLI::ParseError& error) {
    constexpr int wrong_usage = 2;
    exit_code = parser.exit(error) == 0 ? 0 : wrong_usage;
    return std::nullopt;
  }
}

}  // namespace stateport::replay
