// SPDX-License-Identifier: Apache-2.0
#include "fleet_arguments.hpp"

#include "finite_number.hpp"

#include <CLI/CLI.hpp>

#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace stateport::replay {
namespace {

/// "A:B" as two numbers. False: it is none.
bool read_pair(const CLI::results_t& given, double& first, double& second) {
  const std::size_t colon = given.front().find(':');
  return colon != std::string::npos && CLI::detail::lexical_cast(given.front().substr(0, colon), first) &&
         CLI::detail::lexical_cast(given.front().substr(colon + 1), second) && first > 0 && second >= 0 &&
         std::isfinite(first) && std::isfinite(second);
}

}  // namespace

void add_fleet_arguments(CLI::App& app, FleetArguments& fleet, TierSpeeds& speeds) {
  constexpr std::size_t most_nodes = 1'000'000;
  app.add_option("--nodes", fleet.nodes,
                 "Simulate so many machines, each with a cache of --budget, --host and --disk; bytes are counted, not "
                 "moved")
      ->check(CLI::Range(std::size_t{1}, most_nodes))
      ->option_text("INT");
  app.add_option("--remote", fleet.remote_bytes, "A store that all nodes share, least recently used goes first")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES");
  const auto read_link = [&speeds](const CLI::results_t& given) {
    double gb_per_s = 0;
    double latency_us = 0;
    if (!read_pair(given, gb_per_s, latency_us)) return false;
    speeds.remote_bytes_per_s = gb_per_s * 1e9;
    speeds.remote_latency_s = latency_us / 1e6;
    return true;
  };
  app.add_option("--link", read_link,
                 "Of each node to the remote store, both directions together: bandwidth and latency")
      ->option_text("GB/s:us");
  static const std::map<std::string, Route> routes = {
      {"round-robin", Route::round_robin}, {"session", Route::session}, {"prefix", Route::prefix}};
  app.add_option(
         "--route", fleet.routes,
         "How requests find their node: one after the other; by a hash of the conversation; where, by the events "
         "of the caches, the deepest checkpoint is. Each is simulated")
      ->transform(CLI::CheckedTransformer(routes, CLI::ignore_case))
      ->delimiter(',')
      ->option_text("round-robin,session,prefix [all]");
  app.add_option("--load", fleet.load,
                 "The workload so many times at once, with conversations of their own that share what those of the "
                 "workload share; below 1: a part of its conversations")
      ->check(finite_number())
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app.add_option("--imbalance", fleet.imbalance_tokens,
                 "Route prefix: a node does not count where more tokens wait beyond the least of all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--event-delay", fleet.event_delay_s, "Route prefix: seconds until the router hears of an event")
      ->check(finite_number())
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--write-back", fleet.write_back,
               "To the remote store goes only what a node gives up, not every checkpoint as soon as it is made");
  const auto read_failures = [&fleet](const CLI::results_t& given) {
    return read_pair(given, fleet.mean_life_s, fleet.down_s);
  };
  app.add_option(
         "--node-failures", read_failures,
         "Each node fails after so many seconds on average, loses its device and its host, and comes back after "
         "so many with its files")
      ->option_text("MTBF_S:DOWN_S");
  const auto read_sample = [&fleet](const CLI::results_t& given) {
    const std::size_t colon = given.front().find(':');
    if (!CLI::detail::lexical_cast(given.front().substr(0, colon), fleet.sample_nodes) || fleet.sample_nodes < 0)
      return false;
    return colon == std::string::npos ||
           (CLI::detail::lexical_cast(given.front().substr(colon + 1), fleet.samples) && fleet.samples >= 1);
  };
  app.add_option("--sample", read_sample,
                 "Simulate so many of the nodes with their part of the conversations and of the remote store, so many "
                 "times; 0: all nodes")
      ->option_text("NODES[:TIMES] [32:8 for more than 128 nodes]");
}

/// A fleet is simulated, and counts alone.
void check_fleet_arguments(const CLI::App& app, const FleetArguments& fleet, PolicyKind policy, bool disk_folder) {
  for (const char* option : {"--remote", "--link", "--route", "--load", "--imbalance", "--event-delay", "--write-back",
                             "--node-failures", "--sample"})
    if (app.count(option) > 0 && !fleet.wanted()) throw CLI::ValidationError(option, "needs --nodes");
  if (!fleet.wanted()) return;
  for (const char* option : {"--budget", "--prefill-rate"})
    if (app.count(option) == 0) throw CLI::ValidationError("--nodes", std::string("needs ") + option);
  if (!has_tiers(policy)) throw CLI::ValidationError("--nodes", "needs a policy of RequestCache");
  for (const char* option : {"--serve", "--materialize", "--prometheus", "--plant"})
    if (app.count(option) > 0) throw CLI::ValidationError(option, "means nothing with --nodes");
  if (disk_folder) throw CLI::ValidationError("--disk", "takes no folder with --nodes: they are counted");
  if (fleet.write_back && fleet.remote_bytes == 0) throw CLI::ValidationError("--write-back", "needs --remote");
  if (std::cmp_greater(fleet.sample_nodes, fleet.nodes))
    throw CLI::ValidationError("--sample", "more nodes than there are");
}

}  // namespace stateport::replay
