// SPDX-License-Identifier: Apache-2.0
// stateport-soak: simulates long service, and says whether anything grew or went wrong.
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>

#include "fleet.hpp"
#include "memory_samples.hpp"
#include "temporary_folder.hpp"
#include "violation.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace stateport;
using namespace stateport::soak;
using Clock = std::chrono::steady_clock;

constexpr std::size_t samples_of_run = 400;

std::atomic<bool> is_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
void interrupt(int) {
  is_interrupted = true;
}

struct Arguments {
  std::int64_t requests = 0;
  double hours = 0;
  std::uint64_t seed = 1;
  std::vector<std::string> indexes = {"slots", "tree", "columns", "tree_columns"};
  double real_share = 0.1;
  std::int64_t report_every = 0;
  std::int64_t check_every = 100000;
  std::string json;
  std::string folder;
  std::string plant = "nothing";
};

const std::map<std::string, Combination> index_names = {{"slots", Combination::hash_slots},
                                                        {"tree", Combination::tree_slots},
                                                        {"columns", Combination::hash_columns},
                                                        {"tree_columns", Combination::tree_columns}};
const std::map<std::string, Planted> planted_names = {
    {"nothing", Planted::nothing}, {"events", Planted::events}, {"state", Planted::state}, {"slot", Planted::slot},
    {"move", Planted::move},       {"write", Planted::write},   {"pages", Planted::pages}};

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

Figures difference(const Figures& late, const Figures& early) {
  Figures figures = late;
  figures.requests -= early.requests;
  figures.prompt_tokens -= early.prompt_tokens;
  figures.hit_tokens -= early.hit_tokens;
  figures.loaded_tokens -= early.loaded_tokens;
  return figures;
}

/// One run.
class Run {
 public:
  Run(const Arguments& arguments, const FleetOptions& options)
      : arguments_(arguments), fleet_(options), samples_(samples_of_run + 8) {
    if (!arguments.json.empty()) {
      json_.reset(std::fopen(arguments.json.c_str(), "w"));
      if (!json_) throw std::runtime_error(fmt::format("cannot write {}", arguments.json));
    }
    for (const Combination index : options.indexes) indexes_.push_back(index);
    quarters_.emplace_back(indexes_.size());
  }

  /// Returns whether memory stayed flat.
  bool operator()() {
    while (!is_interrupted && progress() < 1) {
      fleet_.serve();
      served_ = fleet_.figures().requests;
      if (served_ >= next_check_) check();
      if (served_ >= next_report_) report();
      sample();
      pace();
    }
    fleet_.rest();
    check();
    report();
    return summary();
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };

  [[nodiscard]] double hours() const {
    return std::chrono::duration<double, std::ratio<3600>>(Clock::now() - begin_).count();
  }
  /// The part of the goal that is reached, by the measure that is furthest behind.
  [[nodiscard]] double progress() const {
    double part = 1;
    if (arguments_.requests > 0) part = std::min(part, share(served_, arguments_.requests));
    if (arguments_.hours > 0) part = std::min(part, hours() / arguments_.hours);
    return part;
  }
  /// A run that is to take some time spreads its requests over it.
  void pace() const {
    if (arguments_.requests == 0 || arguments_.hours == 0) return;
    const double ahead_hours = share(served_, arguments_.requests) * arguments_.hours - hours();
    const double seconds = std::min(ahead_hours * 3600, 0.1);
    if (seconds > 0.002) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  void check() {
    fleet_.check_invariants();
    ++checks_;
    next_check_ = served_ + arguments_.check_every;
  }
  void sample() {
    const double part = progress();
    if (part * static_cast<double>(samples_of_run) < static_cast<double>(sampled_)) return;
    ++sampled_;
    samples_.add(process_memory(), fleet_.files());
    if (part * 4 < static_cast<double>(quarters_.size())) return;
    end_quarter();
  }
  void end_quarter() {
    auto& quarter = quarters_.emplace_back();
    for (const Combination index : indexes_) quarter.push_back(fleet_.figures(index));
  }
  void report();
  bool summary();

  Arguments arguments_;
  Fleet fleet_;
  MemorySamples samples_;
  std::unique_ptr<std::FILE, Close> json_;
  std::vector<Combination> indexes_;
  std::vector<std::vector<Figures>> quarters_;  ///< at the ends of quarters, the first at the start; by index
  Clock::time_point begin_ = Clock::now();
  std::int64_t served_ = 0;
  std::int64_t checks_ = 0;
  std::size_t sampled_ = 0;
  std::int64_t next_check_ = arguments_.check_every;
  std::int64_t next_report_ = arguments_.report_every;
};

void Run::report() {
  next_report_ = served_ + arguments_.report_every;
  const ProcessMemory memory = process_memory();
  const FaultCounts faults = fleet_.faults();
  const Figures all = fleet_.figures();
  std::string rates, json_rates;
  for (const Combination index : indexes_) {
    const Figures figures = fleet_.figures(index);
    const double rate = share(figures.hit_tokens, figures.prompt_tokens);
    rates += fmt::format(" {} {:.4f}", name_of(index), rate);
    json_rates += fmt::format(",\"hit_rate_{}\":{:.6f}", name_of(index), rate);
  }
  fmt::print("{:.3f} h, {} requests: hit rates{}; heap {:.2f} MiB, resident {:.1f} MiB, {} descriptors, {} threads\n",
             hours(), served_, rates, static_cast<double>(memory.heap_bytes) / (1 << 20),
             static_cast<double>(memory.resident_bytes) / (1 << 20), memory.descriptors, memory.threads);
  std::fflush(stdout);
  if (!json_) return;
  fmt::print(json_.get(),
             "{{\"hours\":{:.6f},\"requests\":{},\"real_requests\":{},\"heap_bytes\":{},\"resident_bytes\":{},"
             "\"descriptors\":{},\"threads\":{},\"files\":{},\"checks\":{},\"loads\":{},\"failed_transfers\":{},"
             "\"damaged_images\":{},\"restarts\":{}{}}}\n",
             hours(), served_, fleet_.real_requests(), memory.heap_bytes, memory.resident_bytes, memory.descriptors,
             memory.threads, fleet_.files(), checks_, all.loads, faults.failed_transfers, faults.damaged_images,
             all.restarts, json_rates);
  std::fflush(json_.get());
}

bool Run::summary() {
  const Figures all = fleet_.figures();
  const FaultCounts faults = fleet_.faults();
  fmt::print(
      "{} requests in {:.3f} h, {} of them over tiers that move bytes (real files and an in-process store), the "
      "others over simulated ones\n",
      served_, hours(), fleet_.real_requests());
  fmt::print(
      "{} loads, {} loads that failed, {} passes ahead, {} cancelled, {} preempted, {} aborted, {} refused calls, "
      "{} resets, {} epochs, {} forks, {} moves of KV of drafts, {} moves of memory, {} restarts that found {} "
      "images\n",
      all.loads, all.failed_loads, all.passes_ahead, all.cancelled_passes, all.preempted, all.aborted,
      all.refused_calls, all.resets, all.epochs, all.forks, all.kv_moves, all.memory_moves, all.restarts,
      all.found_images);
  fmt::print("{} checks of checkpoints, {} checkpoints withdrawn\n", all.checks, all.withdrawn);
  fmt::print(
      "{} transfers that failed, {} images damaged, {} vanished, a store away {} times; invariants checked {} "
      "times\n",
      faults.failed_transfers, faults.damaged_images, faults.vanished_images, faults.store_absences, checks_);
  if (quarters_.size() == 4) end_quarter();
  for (std::size_t quarter = 1; quarter < quarters_.size(); ++quarter) {
    std::string rates;
    for (std::size_t i = 0; i < indexes_.size(); ++i) {
      const Figures figures = difference(quarters_[quarter][i], quarters_[quarter - 1][i]);
      rates += fmt::format(" {} {:.4f} ({:.4f} below the device, {:.1f} tokens a prompt)", name_of(indexes_[i]),
                           share(figures.hit_tokens, figures.prompt_tokens),
                           share(figures.loaded_tokens, figures.prompt_tokens),
                           share(figures.prompt_tokens, figures.requests));
    }
    fmt::print("hit rates, quarter {}:{}\n", quarter, rates);
  }
  for (const std::string& line : samples_.quarters()) fmt::print("{}\n", line);
  if (!samples_.enough()) {
    fmt::print("memory: not judged, the run was too short\n");
    return true;
  }
  const auto& limits =
      served_ < MemorySamples::long_requests ? MemorySamples::of_short_runs : MemorySamples::of_long_runs;
  const std::vector<std::string> growth = samples_.growth(limits);
  for (const std::string& line : growth) fmt::print("FAILED: {}\n", line);
  if (process_memory().heap_bytes < 0) fmt::print("memory: the heap is not known here\n");
  if (growth.empty())
    fmt::print(
        "memory: flat, the heap within {} % or {} KiB, resident within {} % or {} KiB, descriptors and threads "
        "within {}\n",
        100 * limits.heap_growth, limits.heap_min_bytes / 1024, 100 * limits.resident_growth,
        limits.resident_min_bytes / 1024, limits.counts);
  return growth.empty();
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--requests", arguments.requests, "to serve, at least; 0: as --hours says")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--hours", arguments.hours, "to run, at least; with --requests these are spread over it")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", arguments.seed, "of all random numbers")->capture_default_str();
  app.add_option("--indexes", arguments.indexes, "slots, tree, columns, tree_columns")
      ->delimiter(',')
      ->check(CLI::IsMember(index_names));
  app.add_option("--real-share", arguments.real_share, "of requests whose tiers move bytes; the others' are simulated")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--report-every", arguments.report_every, "requests; default: a hundredth of --requests");
  app.add_option("--check-every", arguments.check_every, "requests between checks of all invariants")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", arguments.json, "file for a line of JSON with each report");
  app.add_option("--folder", arguments.folder, "for files of tiers; default: that for temporary files")
      ->check(CLI::ExistingDirectory);
  app.add_option("--plant", arguments.plant,
                 "a mistake that must be noticed: events, state, slot, move, write or pages")
      ->check(CLI::IsMember(planted_names));
}

int serve(Arguments arguments) {
  if (arguments.requests == 0 && arguments.hours == 0) arguments.requests = 20000;
  if (arguments.report_every <= 0) arguments.report_every = std::max<std::int64_t>(arguments.requests / 100, 1000);
  const test::TemporaryFolder folder(arguments.folder.empty() ? std::filesystem::temp_directory_path()
                                                              : std::filesystem::path(arguments.folder));
  FleetOptions options{.seed = arguments.seed,
                       .real_share = arguments.real_share,
                       .folder = folder.path(),
                       .planted = planted_names.at(arguments.plant)};
  for (const std::string& name : arguments.indexes) options.indexes.push_back(index_names.at(name));
  fmt::print("seed {}\n", arguments.seed);
  std::fflush(stdout);
  try {
    return Run(arguments, options)() ? 0 : 1;
  } catch (const Violation& violation) {
    fmt::print("FAILED: {}\n", violation.what());
    fmt::print("repeat: stateport-soak --seed {} --requests {} --real-share {} --indexes {}\n", arguments.seed,
               arguments.requests, arguments.real_share, CLI::detail::join(arguments.indexes, ","));
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  use_one_arena();
  Arguments arguments;
  CLI::App app(
      "Serves requests of conversations with every index over tiers that fail, and checks the states that they read.");
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  try {
    std::optional<Runtime> runtime;
    try {
      runtime.emplace(Runtime::Options{.host_threads = 1});
    } catch (const BackendError& error) {
      fmt::print("SKIPPED: {}\n", error.what());
      return 77;
    }
    return serve(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stateport-soak: %s\n", error.what());
    return 2;
  }
}
