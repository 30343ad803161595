// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/model/state_spec.hpp>

#include "caches/budget.hpp"
#include "options/options.hpp"
#include "report/report.hpp"
#include "runs/progress.hpp"
#include "states/pass_mover.hpp"
#include "workload/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

/// From the command line to a run, and to its description in the report.
namespace stateport::replay {

inline constexpr int exit_mismatch = 1;
inline constexpr int exit_failed = 2;
inline constexpr int exit_interrupted = 130;

/// The workload and the model of a run.
struct RunInput {
  Workload workload;          ///< with the hints that were asked for
  std::int64_t requests = 0;  ///< to serve
  StateSpec full;             ///< a state of a running request, with room for its drafts
  StateSpec checkpoint;
  ModelOptions model;
  std::optional<std::size_t> kv_bytes_per_token;  ///< none: not known
  std::int32_t drafts = 0;
  TenantOptions tenants;
  RunDescription run;  ///< for the report: the workload and the model
};

/// Reads the trace or generates the workload; prints the number of malformed entries that were left out. Throws as
/// read_traces, generate_workload, named_model and quantised(), and std::runtime_error for another type of recurrent
/// states where a recorded trace has their size.
[[nodiscard]] RunInput read_input(const char* command, const CommonOptions& common, std::int32_t drafts = 0);

/// A file of results. It is opened before the run, so that a path that cannot be written does not cost one. Both
/// functions throw std::runtime_error with the name of the file.
class OutputFile {
 public:
  /// An empty name: no file, and writing does nothing.
  explicit OutputFile(std::string name);
  void write(const std::string& text);

 private:
  std::string name_;
  std::ofstream out_;
};

/// States count as checkpoints do. Throws InvalidArgument for a model whose KV is not known.
[[nodiscard]] Budget make_budget(const RunInput& input, const MemoryOptions& memory);
/// The cache with its blocks and slots, for the report; `unlimited` ones are those of the command.
void describe_pools(const PoolOptions& pools, const Workload& workload, RunDescription& run);

/// Conv tokens of a state, with room for drafts; 0 for a model that has none.
[[nodiscard]] std::int32_t conv_window(const StateSpec& full);
/// The same without the room for drafts, at least 1.
[[nodiscard]] std::int32_t history_tokens(const RunInput& input);
/// States in device memory for a cache that needs this room, which are added to the description; none if the options
/// say so. `against_memcpy`: see DevicePassesOptions. `folder`: of the files, with the tiers of the description.
[[nodiscard]] std::unique_ptr<PassMover> make_mover(const RunInput& input, const StateOptions& options,
                                                    MemoryResource& memory, const StateRoom& room, bool against_memcpy,
                                                    const std::string& folder, RunDescription& run);

/// Makes the first Ctrl-C end the replay after the current request; a second one ends the program.
void interrupt_gently();
/// Whether there was no Ctrl-C yet.
[[nodiscard]] bool keep_going() noexcept;

/// Runs a replayer over the requests of the run. Ctrl-C ends it. `served` is called with the number served so far.
template <class AnyReplayer, class Served>
void run_requests(const RunInput& input, AnyReplayer& replayer, bool show_progress, const Served& served) {
  ProgressBar progress(show_progress ? input.requests : 0);
  replayer.run([&](std::int64_t requests) {
    progress.show(requests);
    served(requests);
    return keep_going() && requests < input.requests;
  });
}

/// Marks the report as interrupted if there was a Ctrl-C, and else compares its two passes: to be called directly after
/// them. Throws std::logic_error if the passes decided differently.
void check_passes(Report& report);
/// Prints the report and writes it; returns the exit code.
[[nodiscard]] int finish(const Report& report, OutputFile& json);

/// The commands of stateport-replay. Each reads the workload, prints its results, writes the files that were asked for,
/// and returns the exit code of the program. Each throws an exception of the library or std::runtime_error for a run
/// that cannot be done, and std::runtime_error for a file that cannot be written.
[[nodiscard]] int run(const PromptsOptions& options);
[[nodiscard]] int run(const ServeOptions& options);
[[nodiscard]] int run(const BudgetOptions& options);
[[nodiscard]] int run(const SweepOptions& options);
[[nodiscard]] int run(const SizeOptions& options);
[[nodiscard]] int run(const FleetRunOptions& options);

}  // namespace stateport::replay
