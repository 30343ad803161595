// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/model/state_spec.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "options.hpp"
#include "report/report.hpp"
#include "states/pass_mover.hpp"
#include "workload/workload.hpp"

#include <cstdint>
#include <memory>
#include <string>

/// From the command line to what is replayed, and to its description in the report.
namespace stateport::replay {

struct LoadedWorkload {
  Workload workload;  ///< with the hints that were asked for
  std::string name;   ///< file and format, or kind and seed
  std::int64_t bad_lines = 0;
  std::string first_bad_line;  ///< in words, if there are any
};

/// Reads the trace or generates the workload. Throws as read_trace and generate_workload.
[[nodiscard]] LoadedWorkload load_workload(const Options& options);

/// What a checkpoint of a `full` state consists of. Throws InvalidArgument as quantised().
[[nodiscard]] StateSpec checkpoint_spec(const Options& options, const StateSpec& full);
/// `full`: a state of the model. States count as checkpoints do. Throws InvalidArgument for a model of which the
/// catalogue does not know the KV.
[[nodiscard]] Budget make_budget(const Options& options, const StateSpec& full, std::int64_t bytes);

/// Everything that is known before a runtime is started, capacities included.
[[nodiscard]] RunDescription describe_run(const Options& options, const LoadedWorkload& loaded, const StateSpec& full);
/// Conv tokens of a state, with room for drafts; 0 for a model that has none.
[[nodiscard]] std::int32_t conv_window(const StateSpec& full);
/// The same without the room for drafts, at least 1.
[[nodiscard]] std::int32_t history_tokens(const Options& options, const StateSpec& full);
/// States in device memory for a cache that needs so much room, which are added to the description; none if the options
/// say so. `against_memcpy`: see DevicePassesOptions.
[[nodiscard]] std::unique_ptr<PassMover> make_mover(const Options& options, MemoryResource& memory,
                                                    const StateSpec& full, const StateRoom& room, bool against_memcpy,
                                                    RunDescription& run);

}  // namespace stateport::replay
