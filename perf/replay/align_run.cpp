// SPDX-License-Identifier: Apache-2.0
#include "align_run.hpp"

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>

#include "states/device_align_states.hpp"
#include "states/scaled_spec.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

/// Conv tokens of a state, drafts not counted; 1 for a model that has none.
std::int32_t history_tokens(const StateSpec& spec, std::int32_t drafts) {
  const auto conv = std::ranges::find(spec.tensors(), StateKind::conv, &StateTensorSpec::kind);
  return conv == spec.tensors().end() ? 1 : static_cast<std::int32_t>(conv->window()) - drafts;
}

void serve(const Workload& workload, const AlignReplayOptions& align, AlignMover& mover, bool show_progress,
           const RunAligned& run, Report& report) {
  AlignReplayer replayer(workload, align, mover);
  run(replayer, show_progress);
  replayer.check_invariants();
  report.replay = replayer.counts();
  report.align = replayer.align_counts();
  report.cache = replayer.cache().counts();
  report.mover = mover.counts();
}

std::unique_ptr<AlignMover> make_mover(const Options& options, MemoryResource& memory, const StateSpec& full,
                                       const Workload& workload, const AlignReplayOptions& align,
                                       RunDescription& description) {
  if (options.materialize_bytes == 0) return std::make_unique<NoAlignStates>();
  auto states = std::make_unique<DeviceAlignStates>(
      memory, full,
      DeviceAlignStatesOptions{.blocks = align.blocks,
                               .block_size_tokens = workload.block_size_tokens(),
                               .drafts = align.drafts,
                               .requests = align_requests,
                               .columns = align_columns(workload, align.drafts),
                               .history_tokens = align.history_tokens,
                               .materialize_bytes = static_cast<std::size_t>(options.materialize_bytes),
                               .plant_wrong_block = options.plant_wrong_slot});
  description.memory_state = describe(states->spec());
  description.memory_bytes = states->memory_bytes();
  return states;
}

}  // namespace

void replay_aligned(const Options& options, const Workload& workload, const StateSpec& full, Report& report,
                    const RunAligned& run) {
  const AlignReplayOptions align{.blocks = static_cast<std::int32_t>(report.run.slots),
                                 .drafts = options.drafts,
                                 .accept = options.accept,
                                 .asynchronous = options.asynchronous,
                                 .seed = options.generator.seed,
                                 .history_tokens = history_tokens(full, options.drafts)};
  // Before the runtime starts, whose waiting threads would share the cores, and with the caches to itself.
  NoAlignStates none;
  serve(workload, align, none, false, run, report);
  report.bookkeeping = report.replay;
  std::vector<double> planning_ns = std::move(report.align->planning_ns);
  const Runtime runtime;
  report.run.device = runtime.device().name;
  DeviceResource memory;
  const std::unique_ptr<AlignMover> mover = make_mover(options, memory, full, workload, align, report.run);
  serve(workload, align, *mover, true, run, report);
  report.align->planning_ns = std::move(planning_ns);
}

}  // namespace stateport::replay
