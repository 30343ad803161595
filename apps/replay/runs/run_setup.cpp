// SPDX-License-Identifier: Apache-2.0
#include "runs/run_setup.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "fleet/crowd.hpp"
#include "report/json.hpp"
#include "states/device_passes.hpp"
#include "states/named_model.hpp"
#include "states/scaled_spec.hpp"
#include "workload/generator.hpp"
#include "workload/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// Reads or generates it, and describes it in `run`.
Workload read_workload(const WorkloadOptions& options, RunDescription& run) {
  if (options.traces.empty()) {
    GeneratorOptions generator = options.generator;
    generator.requests = requests_at_once(generator.kind).value_or(generator.requests);
    if (options.requests_max > 0) generator.requests = options.requests_max;
    run.workload = fmt::format("generated {}, seed {}", name(generator.kind), generator.seed);
    return generate_workload(generator);
  }
  TraceOptions trace_options = options.trace_options;
  trace_options.block_size_tokens = options.generator.block_size_tokens;
  const std::vector<std::filesystem::path> files(options.traces.begin(), options.traces.end());
  Trace trace = read_traces(files, trace_options);
  if (trace.bad_lines > 0) fmt::print(stderr, "skipped {} entries, first: {}\n", trace.bad_lines, trace.first_bad_line);
  const std::string others = files.size() == 1 ? "" : fmt::format(" and {} more", files.size() - 1);
  run.workload = fmt::format("{}{} ({})", options.traces.front(), others, trace.description());
  run.bad_lines = trace.bad_lines;
  run.recorded = trace.header;
  run.never_ran = trace.never_ran;
  return std::move(trace.workload);
}

/// The sizes of a recorded trace; false: it does not have both, or the command line names a model.
bool take_recorded_sizes(const std::optional<TraceHeader>& header, RunInput& input) {
  if (!header || input.model.is_given || !header->state_bytes || !header->kv_bytes_per_token) return false;
  if (input.model.recurrent_type || input.model.checkpoint_type)
    throw std::runtime_error(
        "--recurrent-dtype and --checkpoint-dtype need --model: a recorded trace has the bytes of a state alone");
  constexpr std::int64_t word = 4;  // of an opaque state
  input.full = StateSpec::opaque((*header->state_bytes + word - 1) / word * word);
  input.kv_bytes_per_token = static_cast<std::size_t>(*header->kv_bytes_per_token);
  input.model.name = header->model.empty() ? "recorded" : header->model;
  return true;
}

}  // namespace

void interrupt_gently() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

bool keep_going() noexcept {
  return interrupted == 0;
}

RunInput read_input(const char* command, const CommonOptions& common, std::int32_t drafts) {
  const ModelOptions& model = common.model;
  RunDescription run{.command = command, .tenants = common.tenants};
  Workload workload = read_workload(common.workload, run);
  std::int64_t wanted = common.workload.requests_max;
  if (common.tenants.flood > 0) {
    if (wanted > 0) workload = workload.first(static_cast<std::size_t>(std::exchange(wanted, 0)));
    workload = add_flood(workload, common.tenants.flood);
    run.workload += fmt::format(", and {:g} times by a flood", common.tenants.flood);
  }
  if (common.workload.hints.any()) workload.give_hints(common.workload.hints);
  const auto all = static_cast<std::int64_t>(workload.size());
  const models::ModelInfo info = named_model(model.name);
  const StateSpec named = models::spec(info, {.drafts = drafts, .recurrent_type = model.recurrent_type});
  RunInput input{.workload = std::move(workload),
                 .requests = wanted > 0 ? std::min(wanted, all) : all,
                 .full = named,
                 .checkpoint = named,
                 .model = model,
                 .drafts = drafts,
                 .tenants = common.tenants,
                 .run = std::move(run)};
  if (!take_recorded_sizes(input.run.recorded, input)) input.kv_bytes_per_token = info.kv_bytes_per_token;
  input.checkpoint = model.checkpoint_type ? quantised(input.full, *model.checkpoint_type) : input.full;
  input.run.model = input.model.name;
  input.run.block_size_tokens = input.workload.block_size_tokens();
  input.run.full_state = describe(input.full);
  input.run.full_state_bytes = input.full.slot_bytes();
  input.run.checkpoint_type = model.checkpoint_type ? std::string(name(*model.checkpoint_type)) : "model";
  input.run.checkpoint_bytes = input.checkpoint.slot_bytes();
  return input;
}

OutputFile::OutputFile(std::string name) : name_(std::move(name)) {
  if (name_.empty()) return;
  out_.open(name_, std::ios::binary | std::ios::trunc);
  if (!out_) throw std::runtime_error(name_ + ": cannot be written");
}

void OutputFile::write(const std::string& text) {
  if (name_.empty()) return;
  out_ << text << std::flush;
  if (!out_) throw std::runtime_error(name_ + ": writing failed");
}

Budget make_budget(const RunInput& input, const MemoryOptions& memory) {
  const auto kv_bytes = input.kv_bytes_per_token;
  require(kv_bytes.has_value(), "model", input.model.name, "its KV bytes per token are not known: a budget needs them");
  return {.bytes = memory.bytes,
          .state_bytes = static_cast<std::int64_t>(input.checkpoint.slot_bytes()),
          .kv_bytes_per_token = static_cast<std::int64_t>(*kv_bytes),
          .block_size_tokens = input.workload.block_size_tokens(),
          .host_bytes = memory.host_bytes,
          .file_bytes = memory.disk_bytes,
          .speeds = memory.speeds,
          .separate_checkpoints = input.model.checkpoint_type.has_value(),
          .arena_tokens = memory.division.arena_tokens,
          .state_share = memory.division.state_share,
          .tenants = input.tenants,
          .positions = memory.positions};
}

void describe_pools(const PoolOptions& pools, const Workload& workload, RunDescription& run) {
  constexpr const char* names[] = {"slots", "tree", "align", "tree-align"};
  run.cache = names[static_cast<std::size_t>(pools.cache)];
  if (pools.eviction) run.cache += fmt::format(", {}", name(*pools.eviction));
  run.hash = "none";
  if (pools.cache == CacheKind::slots) run.hash = pools.hash == BlockHashKind::sha256 ? "sha256" : "xxh3_128";
  run.slots = pools.slots;
  run.blocks = pools.blocks > 0 ? pools.blocks
                                : std::clamp(blocks_per_slot * run.slots, workload.longest_blocks(),
                                             std::int64_t{std::numeric_limits<std::int32_t>::max() - 1});
  run.unlimited = pools.unlimited;
}

std::int32_t conv_window(const StateSpec& full) {
  const auto conv = std::ranges::find(full.tensors(), StateKind::conv, &StateTensorSpec::kind);
  return conv == full.tensors().end() ? 0 : static_cast<std::int32_t>(conv->window());
}

std::int32_t history_tokens(const RunInput& input) {
  return std::max(conv_window(input.full) - input.drafts, 1);
}

std::unique_ptr<PassMover> make_mover(const RunInput& input, const StateOptions& options, MemoryResource& memory,
                                      const StateRoom& room, bool against_memcpy, const std::string& folder,
                                      RunDescription& run) {
  if (options.materialize_bytes == 0) return std::make_unique<NoPasses>();
  const auto image_bytes = static_cast<std::int64_t>(input.checkpoint.slot_bytes());
  auto states = std::make_unique<DevicePasses>(
      memory, input.full,
      DevicePassesOptions{.room = room,
                          .history_tokens = history_tokens(input),
                          .drafts = input.drafts,
                          .materialize_bytes = static_cast<std::size_t>(options.materialize_bytes),
                          .checkpoint_type = input.model.checkpoint_type,
                          .against_memcpy = against_memcpy && !input.model.checkpoint_type,
                          .host_states = run.memory.host_bytes / image_bytes,
                          .file_states = run.memory.disk_bytes / image_bytes,
                          .file_folder = folder,
                          .plant_wrong_slot = options.plant_wrong_slot});
  run.memory_state = describe(states->spec());
  run.memory_bytes = states->memory_bytes();
  return states;
}

void check_passes(Report& report) {
  report.replay.interrupted = !keep_going();
  require_invariant(report.replay.interrupted || report.replay.hit_tokens == report.bookkeeping.hit_tokens, "replay",
                    "the two passes decided differently");
}

int finish(const Report& report, OutputFile& json) {
  fmt::print("{}", to_text(report));
  json.write(to_json(report));
  if (report.mover.mismatches > 0) return exit_mismatch;
  return keep_going() ? 0 : exit_interrupted;
}

}  // namespace stateport::replay
