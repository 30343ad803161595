// SPDX-License-Identifier: Apache-2.0
// stateport-tiny-engine: serves a random schedule with a tiny hybrid model and one of the library's caches.
#include <stateport/backends/runtime.hpp>

#include "check.hpp"
#include "features.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace stateport::engine;

struct Arguments {
  std::string cache = "slots";
  bool every_cache = false;
  std::uint64_t seed = 1;
  std::uint64_t seeds = 0;
  bool ids_only = false;
  bool mixed = false;
  Draw draw;
};

/// The cache and the features of this seed's schedule.
Mixture mixture_of(const Arguments& arguments, std::uint64_t seed) {
  Mixture mixture = arguments.mixed ? draw_mixture(seed) : Mixture{arguments.cache, arguments.draw};
  mixture.draw.drafts = arguments.draw.drafts;
  return mixture;
}

/// The arguments that serve this schedule again.
std::string command_of(std::uint64_t seed, const Mixture& mixture) {
  std::string command = "stateport-tiny-engine --seeds 1 --seed " + std::to_string(seed);
  command.append(" --cache ").append(mixture.cache);
  if (mixture.draw.drafts) command += " --draft " + std::to_string(*mixture.draw.drafts);
  for (const Feature& feature : features)
    if (mixture.draw.*feature.flag) command.append(" --").append(feature.name);
  return command;
}

void print(const Schedule& schedule, const Served& served, bool ids_only) {
  for (const PlannedRequest& request : schedule.requests) {
    const Answer& answer = served.answers[static_cast<std::size_t>(request.id)];
    if (!ids_only) std::printf("request %d:", request.id);
    for (std::size_t i = request.prompt.size(); i < answer.tokens.size(); ++i) std::printf(" %d", answer.tokens[i]);
    std::printf("\n");
  }
  if (ids_only) return;
  const CacheCounts& counts = served.counts;
  std::printf("hit rate %.3f, copies %lld, evictions %lld\n",
              static_cast<double>(counts.hit_tokens) / static_cast<double>(counts.lookup_tokens),
              static_cast<long long>(counts.copies), static_cast<long long>(counts.evictions));
}

/// The counts that are not 0.
void print(const CacheCounts& counts) {
  const TierCounts& tiers = counts.tiers;
  const auto line = [](const char* what, std::int64_t count) {
    if (count != 0) std::printf("%s %lld\n", what, static_cast<long long>(count));
  };
  line("batches planned ahead", counts.planned_ahead);
  line("tokens waited for", counts.awaited_tokens);
  line("forks", counts.forks);
  line("requests that ran when their weights became old", counts.stale);
  line("moves of the KV of kept drafts", counts.kv_moves);
  line("moves of memory", counts.memory_moves);
  line("KV blocks copied for them", counts.kv_copies);
  line("checks of checkpoints", counts.checks);
  line("checkpoints that something wrote to", counts.damaged);
  line("faults", counts.faults);
  line("checkpoints withdrawn", counts.withdrawn);
  line("states stored", tiers.stored_states);
  line("blocks stored", tiers.stored_blocks);
  line("states loaded", tiers.loaded_states);
  line("blocks loaded", tiers.loaded_blocks);
  line("requests that loaded from the host", tiers.host_hits);
  line("requests that loaded from files", tiers.file_hits);
  line("restarts", tiers.restarts);
  line("images found at a start", tiers.attached_images);
  line("images of another layout", tiers.foreign_images);
  line("states loaded from an engine before", tiers.restored_states);
  line("images not found as they should be", tiers.lost_images);
  line("images without room", tiers.refused_images);
}

/// Compares seeds seed … seed + seeds - 1 with the oracle, with every cache or the one named.
int check_seeds(const Arguments& arguments) {
  CacheCounts counts;
  FeatureCounts schedules;
  int failures = 0;
  for (std::uint64_t seed = arguments.seed; seed < arguments.seed + arguments.seeds; ++seed) {
    const Mixture mixture = mixture_of(arguments, seed);
    const bool every_cache = arguments.every_cache && !arguments.mixed;
    const Problem problem = draw_problem(seed, mixture.draw);
    schedules.add(mixture.draw);
    for (const std::string_view cache : cache_names()) {
      if (!every_cache && cache != mixture.cache) continue;
      if (mixture.draw.tiers && (cache == "none" || (every_cache && cache != cache_of_seed(seed)))) continue;
      const auto failure = check(problem, cache, counts);
      if (!failure) continue;
      ++failures;
      std::printf("%s\n%s\n", command_of(seed, {cache, mixture.draw}).c_str(), failure->c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%llu seeds, %d differences, hit rate %.3f, copies %lld, evictions %lld\n",
              static_cast<unsigned long long>(arguments.seeds), failures,
              static_cast<double>(counts.hit_tokens) / static_cast<double>(counts.lookup_tokens),
              static_cast<long long>(counts.copies), static_cast<long long>(counts.evictions));
  print(counts);
  if (arguments.mixed) std::cout << schedules;
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Serves a random schedule of requests with a tiny hybrid model, and prints the tokens that it generates.");
  std::vector<std::string> names;
  for (const std::string_view name : cache_names()) names.emplace_back(name);
  auto* cache = app.add_option("--cache", arguments.cache, "how states are kept")->check(CLI::IsMember(names));
  app.add_option("--seed", arguments.seed, "of the schedule and the model")->capture_default_str();
  app.add_option("--draft", arguments.draw.drafts, "draft tokens of a step (default: drawn)")->check(CLI::Range(0, 6));
  app.add_flag("--ids-only", arguments.ids_only, "generated ids alone, one request a line");
  auto* mixed = app.add_flag("--mixed", arguments.mixed, "draw the cache of each seed, and which of these it has:");
  mixed->excludes(cache);
  for (const Feature& feature : features)
    app.add_flag("--" + std::string(feature.name), arguments.draw.*feature.flag, std::string(feature.help))
        ->excludes(mixed);
  app.add_option("--seeds", arguments.seeds, "compare this number of schedules from --seed on with the oracle instead");
  CLI11_PARSE(app, argc, argv);
  try {
    const stateport::Runtime runtime({.host_threads = 1});
    arguments.every_cache = cache->count() == 0;
    if (arguments.seeds > 0) return check_seeds(arguments);
    const Mixture mixture = mixture_of(arguments, arguments.seed);
    Schedule schedule = draw_problem(arguments.seed, mixture.draw).schedule;
    // The progress of an aborted request depends on the cache; the printed answers must not.
    std::erase_if(schedule.events, [](const PlannedEvent& event) { return event.kind == PlannedEvent::Kind::abort; });
    print(schedule, serve(schedule, mixture.cache), arguments.ids_only);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stateport-tiny-engine: %s\n", error.what());
    return 2;
  }
  return 0;
}
