// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "caches/policy_kind.hpp"
#include "caches/replayer.hpp"
#include "caches/served_cache.hpp"
#include "fleet_run.hpp"
#include "options.hpp"
#include "report/fleet_report.hpp"
#include "report/html_report.hpp"
#include "report/json.hpp"
#include "report/progress.hpp"
#include "report/report.hpp"
#include "report/sizing.hpp"
#include "report/sweep.hpp"
#include "report/timeline.hpp"
#include "request_run.hpp"
#include "run_setup.hpp"
#include "workload/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace stateport::replay {
namespace {

constexpr int exit_mismatch = 1;
constexpr int exit_failed = 2;
constexpr int exit_interrupted = 130;

volatile std::sig_atomic_t interrupted = 0;

/// The first Ctrl-C ends the replay after the current request, a second one the program.
void interrupt_gently() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

std::unique_ptr<ReplayCache> make_cache(const Options& options, const RunDescription& run, const StateSpec& spec,
                                        const Workload& workload, bool tells_stored) {
  if (options.budget_bytes > 0)
    return make_budget_cache(options.policy, make_budget(options, spec, options.budget_bytes),
                             compute_cost(options.model), workload, tells_stored);
  const bool tree = options.cache == CacheKind::tree;
  const StateSpec checkpoint = checkpoint_spec(options, spec);
  ServedCacheOptions cache{.index = tree ? CacheIndex::tree : CacheIndex::hash,
                           .blocks = run.blocks,
                           .slots = run.slots,
                           .block_size_tokens = run.block_size_tokens,
                           .longest_blocks = workload.longest_blocks(),
                           .placement = options.checkpoint,
                           .hash = options.hash,
                           .layout_fingerprint = checkpoint.fingerprint(),
                           .eviction = options.eviction.value_or(tree ? EvictionOrder::hix : EvictionOrder::lru),
                           .separate_checkpoints = options.checkpoint_type.has_value(),
                           .tells_stored = tells_stored};
  if (const auto kv_bytes = models::info(options.model).kv_bytes_per_token)
    cache.memory = {.state_bytes = static_cast<std::int64_t>(checkpoint.slot_bytes()),
                    .kv_bytes_per_token = static_cast<std::int64_t>(*kv_bytes)};
  return std::make_unique<ServedCache>(cache);
}

std::int64_t requests_wanted(const Options& options, const Workload& workload) {
  const auto requests = static_cast<std::int64_t>(workload.size());
  return options.requests_max > 0 ? std::min(options.requests_max, requests) : requests;
}

/// Runs a replayer over the requests that are wanted. Ctrl-C ends it.
template <class AnyReplayer>
void run_requests(const Options& options, const Workload& workload, AnyReplayer& replayer, bool show_progress,
                  Timeline* timeline = nullptr) {
  const std::int64_t wanted = requests_wanted(options, workload);
  ProgressBar progress(show_progress ? wanted : 0);
  replayer.run([&](std::int64_t served) {
    progress.show(served);
    if (timeline != nullptr) timeline->served(served, replayer.counts());
    return interrupted == 0 && served < wanted;
  });
}

ReplayCounts serve_prompts(const Options& options, const Workload& workload, ReplayCache& cache, PassMover& mover,
                           const StateSpec& spec, const std::optional<ComputeCost>& explain, bool show_progress,
                           Timeline* timeline = nullptr) {
  Replayer replayer(workload, cache, mover, explain, history_tokens(options, spec));
  run_requests(options, workload, replayer, show_progress, timeline);
  cache.check_invariants();
  return replayer.counts();
}

/// Decisions cost what they cost an engine whose states live on a device only if no state passes through this host's
/// caches in between. They must also be the same decisions.
ReplayCounts time_bookkeeping(const Options& options, const RunDescription& run, const StateSpec& spec,
                              const Workload& workload) {
  const std::unique_ptr<ReplayCache> cache = make_cache(options, run, spec, workload, false);
  NoPasses none;
  return serve_prompts(options, workload, *cache, none, spec, std::nullopt, false);
}

/// Opened before the replay, so that a path that cannot be written does not cost a run.
std::ofstream open_output(const std::string& file) {
  std::ofstream out;
  if (file.empty()) return out;
  out.open(file, std::ios::binary | std::ios::trunc);
  if (!out) throw std::runtime_error(file + ": cannot be written");
  return out;
}

void write_output(std::ofstream& out, const std::string& file, const std::string& text) {
  if (file.empty()) return;
  out << text << std::flush;
  if (!out) throw std::runtime_error(file + ": writing failed");
}

/// Every policy with each budget, states not made.
int run_sweep(const Options& options, const StateSpec& spec, const Workload& workload, std::ofstream& json) {
  const auto cells =
      sweep(workload, requests_wanted(options, workload), make_budget(options, spec, 1), options.sweep_bytes,
            policies_of(options.cache), compute_cost(options.model), [] { return interrupted == 0; });
  fmt::print("{}", to_table(cells));
  write_output(json, options.json_file, to_json(cells));
  return interrupted == 0 ? 0 : exit_interrupted;
}

void replay_prompts(const Options& options, const Workload& workload, const StateSpec& full, Report& report) {
  // Before the runtime starts, whose waiting threads would share the cores.
  report.bookkeeping = time_bookkeeping(options, report.run, full, workload);
  const Runtime runtime;
  report.run.device = runtime.device().name;
  DeviceResource memory;
  const std::unique_ptr<ReplayCache> cache = make_cache(options, report.run, full, workload, true);
  const std::unique_ptr<PassMover> mover = make_mover(options, memory, full, cache->room(), true, report.run);
  const ComputeCost cost = compute_cost(options.model);
  if (options.report_file.empty()) {
    report.replay = serve_prompts(options, workload, *cache, *mover, full, cost, true);
  } else {
    Timeline timeline(workload, requests_wanted(options, workload), make_budget(options, full, options.budget_bytes),
                      *cache, *mover);
    report.replay = serve_prompts(options, workload, *cache, *mover, full, cost, true, &timeline);
    report.timeline = timeline.take(report.replay);
  }
  report.cache = cache->counts();
  report.mover = mover->counts();
}

/// Every policy, of those with tiers if there are any, with a quarter to four times the budget; nothing if that was
/// interrupted.
std::vector<SweepCell> compare_capacities(const Options& options, const StateSpec& spec, const Workload& workload) {
  const std::int64_t budget = options.budget_bytes;
  const auto times = [&](std::int64_t factor) {
    return std::min(budget, std::numeric_limits<std::int64_t>::max() / factor) * factor;
  };
  const std::array budgets = {std::max<std::int64_t>(budget / 4, 1), std::max<std::int64_t>(budget / 2, 1), budget,
                              times(2), times(4)};
  std::vector<PolicyKind> policies;
  for (const PolicyKind policy : compared_policies_of(options.cache))
    if (!options.has_tiers() || has_tiers(policy)) policies.push_back(policy);
  auto cells = sweep(workload, requests_wanted(options, workload), make_budget(options, spec, budget), budgets,
                     policies, compute_cost(options.model), [] { return interrupted == 0; });
  if (interrupted != 0) cells.clear();
  return cells;
}

/// What a memory is worth, states not made.
int run_sizing(const Options& options, const StateSpec& spec, const Workload& workload, std::ofstream& json) {
  const Sizing sizing =
      size_cache(workload, requests_wanted(options, workload), make_budget(options, spec, options.budget_bytes),
                 options.policy, compute_cost(options.model), [] { return interrupted == 0; });
  if (interrupted != 0) return exit_interrupted;
  fmt::print("{}", to_text(sizing));
  write_output(json, options.json_file, to_json(sizing));
  return 0;
}

/// Many machines, simulated.
int run_many(const Options& options, const StateSpec& spec, const LoadedWorkload& loaded, std::ofstream& json,
             std::ofstream& page) {
  const FleetReport report = run_fleet(options, loaded, spec, [] { return interrupted == 0; });
  if (report.answers.empty()) return exit_interrupted;
  fmt::print("{}", to_text(report));
  write_output(json, options.json_file, to_json(report));
  if (!options.report_file.empty()) write_output(page, options.report_file, to_html(report));
  return 0;
}

int replay(const Options& options) {
  interrupt_gently();
  std::ofstream json = open_output(options.json_file);
  std::ofstream prometheus = open_output(options.prometheus_file);
  std::ofstream page = open_output(options.report_file);
  const LoadedWorkload loaded = load_workload(options);
  if (loaded.bad_lines > 0)
    fmt::print(stderr, "skipped {} entries, first: {}\n", loaded.bad_lines, loaded.first_bad_line);
  const Workload& workload = loaded.workload;
  const StateSpec full =
      models::find(options.model, {.drafts = options.drafts, .recurrent_type = options.recurrent_type});
  if (!options.sweep_bytes.empty()) return run_sweep(options, full, workload, json);
  if (options.fleet.wanted()) return run_many(options, full, loaded, json, page);
  if (options.size) return run_sizing(options, full, workload, json);
  Report report{.run = describe_run(options, loaded, full)};
  if (options.serves())
    replay_requests(options, workload, full, report, [&](RequestReplayer& replayer, bool show_progress) {
      run_requests(options, workload, replayer, show_progress);
    });
  else
    replay_prompts(options, workload, full, report);
  report.replay.interrupted = interrupted != 0;
  require_invariant(report.replay.interrupted || report.replay.hit_tokens == report.bookkeeping.hit_tokens, "replay",
                    "the two passes decided differently");
  if (!options.report_file.empty()) report.capacities = compare_capacities(options, full, workload);
  fmt::print("{}", to_text(report));
  write_output(json, options.json_file, to_json(report));
  write_output(prometheus, options.prometheus_file, to_prometheus(report.replay.stats));
  if (!options.report_file.empty()) write_output(page, options.report_file, to_html(report));
  if (report.mover.mismatches > 0) return exit_mismatch;
  return report.replay.interrupted ? exit_interrupted : 0;
}

}  // namespace
}  // namespace stateport::replay

int main(int argc, char** argv) {
  int exit_code = 0;
  const auto options = stateport::replay::parse_options(argc, argv, exit_code);
  if (!options) return exit_code;
  try {
    return stateport::replay::replay(*options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "stateport-replay: {}\n", error.what());
    return stateport::replay::exit_failed;
  }
}
