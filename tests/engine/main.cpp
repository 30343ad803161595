// SPDX-License-Identifier: Apache-2.0
// stateport-tiny-engine: serves a random schedule with a tiny hybrid model and one of the library's caches.
#include <stateport/backends/runtime.hpp>

#include "check.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace stateport::engine;

struct Arguments {
  std::string cache = "slots";
  std::uint64_t seed = 1;
  std::uint64_t seeds = 0;
  std::int32_t drafts = -1;
  bool ids_only = false;
  bool overlap = false;
  bool tiers = false;
  bool tenants = false;
  bool held = false;
  bool named = false;
  bool weights = false;
  bool bursts = false;
  bool forks = false;
  bool arena = false;
  bool integrity = false;
  bool damage = false;
};

Draw given(const Arguments& arguments) {
  Draw draw{.overlap = arguments.overlap,
            .tiers = arguments.tiers,
            .tenants = arguments.tenants,
            .held = arguments.held,
            .arena = arguments.arena,
            .named = arguments.named,
            .weights = arguments.weights,
            .bursts = arguments.bursts,
            .forks = arguments.forks,
            .integrity = arguments.integrity,
            .damage = arguments.damage};
  if (arguments.drafts >= 0) draw.drafts = arguments.drafts;
  return draw;
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

void print(const TierCounts& tiers) {
  const auto line = [](const char* what, std::int64_t count) {
    std::printf("%s %lld\n", what, static_cast<long long>(count));
  };
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
int check_seeds(const Arguments& arguments, bool every_cache) {
  CacheCounts counts;
  int failures = 0;
  for (std::uint64_t seed = arguments.seed; seed < arguments.seed + arguments.seeds; ++seed) {
    const Problem problem = draw_problem(seed, given(arguments));
    for (const std::string_view cache : cache_names()) {
      if (!every_cache && cache != arguments.cache) continue;
      if (arguments.tiers && (cache == "none" || (every_cache && cache != cache_of_seed(seed)))) continue;
      const auto failure = check(problem, cache, counts);
      if (!failure) continue;
      ++failures;
      std::printf("%s\n", failure->c_str());
    }
  }
  std::printf("%llu seeds, %d differences, hit rate %.3f, copies %lld, evictions %lld\n",
              static_cast<unsigned long long>(arguments.seeds), failures,
              static_cast<double>(counts.hit_tokens) / static_cast<double>(counts.lookup_tokens),
              static_cast<long long>(counts.copies), static_cast<long long>(counts.evictions));
  if (arguments.tiers) print(counts.tiers);
  if (arguments.forks) std::printf("%lld forks\n", static_cast<long long>(counts.forks));
  if (arguments.integrity || arguments.damage)
    std::printf("%lld checks of checkpoints, %lld of them damaged, %lld faults, %lld withdrawn\n",
                static_cast<long long>(counts.checks), static_cast<long long>(counts.damaged),
                static_cast<long long>(counts.faults), static_cast<long long>(counts.withdrawn));
  if (arguments.bursts) std::printf("%lld tokens were waited for\n", static_cast<long long>(counts.awaited_tokens));
  if (arguments.arena)
    std::printf("%lld moves of memory, %lld KV blocks copied\n", static_cast<long long>(counts.memory_moves),
                static_cast<long long>(counts.kv_copies));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Serves a random schedule of requests with a tiny hybrid model, and prints the tokens that it generates.");
  std::vector<std::string> names;
  for (const std::string_view name : cache_names()) names.emplace_back(name);
  const auto* cache = app.add_option("--cache", arguments.cache, "how states are kept")->check(CLI::IsMember(names));
  app.add_option("--seed", arguments.seed, "of the schedule and the model")->capture_default_str();
  app.add_option("--draft", arguments.drafts, "draft tokens of a step (default: drawn)")->check(CLI::Range(0, 4));
  app.add_flag("--ids-only", arguments.ids_only, "generated ids alone, one request a line");
  app.add_flag("--overlap", arguments.overlap, "plan a batch before the one before it is read back");
  app.add_flag("--tiers", arguments.tiers, "keep states and KV on the host and in files, too");
  app.add_flag("--tenants", arguments.tenants, "serve two tenants, whose memory is scrubbed");
  app.add_flag("--held", arguments.held, "pin and prefetch prefixes and close sessions while requests run");
  app.add_flag("--weights", arguments.weights, "change weights while requests run, of all or (with --tenants) of one");
  app.add_flag("--named", arguments.named, "name positions of prompts, and leave states before their tails");
  app.add_flag("--bursts", arguments.bursts, "serve requests that come at once and wait for each other's prefixes");
  app.add_flag("--forks", arguments.forks, "serve requests that go on from what others have computed");
  app.add_flag("--arena", arguments.arena, "move memory between KV and states, in caches with slots");
  app.add_flag("--integrity", arguments.integrity, "check checkpoints");
  app.add_flag("--damage", arguments.damage, "check checkpoints, and write to some");
  app.add_option("--seeds", arguments.seeds, "compare this number of schedules from --seed on with the oracle instead");
  CLI11_PARSE(app, argc, argv);
  try {
    const stateport::Runtime runtime({.host_threads = 1});
    if (arguments.seeds > 0) return check_seeds(arguments, cache->count() == 0);
    Schedule schedule = draw_problem(arguments.seed, given(arguments)).schedule;
    // The progress of an aborted request depends on the cache; the printed answers must not.
    std::erase_if(schedule.events, [](const PlannedEvent& event) { return event.kind == PlannedEvent::Kind::abort; });
    print(schedule, serve(schedule, arguments.cache), arguments.ids_only);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stateport-tiny-engine: %s\n", error.what());
    return 2;
  }
  return 0;
}
