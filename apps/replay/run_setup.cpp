// SPDX-License-Identifier: Apache-2.0
#include "run_setup.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "caches/request_replayer.hpp"
#include "states/device_passes.hpp"
#include "states/scaled_spec.hpp"
#include "workload/generator.hpp"
#include "workload/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

namespace stateport::replay {
namespace {

void choose_capacity(const Options& options, const Workload& workload, const StateSpec& spec, RunDescription& run) {
  if (options.budget_bytes > 0) {
    run.budget_bytes = options.budget_bytes;
    run.policy = options.policy;
    run.host_bytes = options.host_bytes;
    run.disk_bytes = options.disk_bytes;
    run.speeds = options.speeds;
    run.slots = slots_max(make_budget(options, spec, options.budget_bytes), workload, options.policy);
    return;
  }
  run.slots = options.slots;
  run.blocks = options.blocks > 0 ? options.blocks
                                  : std::clamp(blocks_per_slot * run.slots, workload.longest_blocks(),
                                               std::int64_t{std::numeric_limits<std::int32_t>::max() - 1});
  if (options.serve && options.blocks == 0) run.blocks = std::max(run.blocks, served_blocks_min(workload));
  run.unlimited = options.unlimited;
  if (!options.unlimited) return;
  const std::int64_t distinct = std::max<std::int64_t>(workload.distinct_blocks(), 1);
  run.blocks = distinct + workload.longest_blocks();  // what a request computes again it has twice
  if (options.serves()) run.blocks = align_blocks_max(workload, options.drafts);
  run.slots = options.serves() ? align_blocks_max(workload, options.drafts)
                               : states_max(options.checkpoint, static_cast<std::int64_t>(workload.size()), distinct);
}

void describe_cache(const Options& options, RunDescription& run) {
  run.checkpoint = name(options.checkpoint);
  if (options.budget_bytes > 0) {
    run.cache = fmt::format("budget, {}", name(options.policy));
    run.hash = options.cache == CacheKind::slots ? "sha256" : "none";
    run.checkpoint = name(placement_of(options.policy));
    return;
  }
  constexpr const char* names[] = {"slots", "tree", "align"};
  run.cache = names[static_cast<std::size_t>(options.cache)];
  if (options.eviction) run.cache += fmt::format(", {}", name(*options.eviction));
  run.hash = "none";
  if (options.cache == CacheKind::slots) run.hash = options.hash == BlockHashKind::sha256 ? "sha256" : "xxh3_128";
  if (!options.serves()) return;
  run.checkpoint = options.cache == CacheKind::align ? "boundaries" : "request cache";
  run.drafts = options.drafts;
  run.accept = options.accept;
  run.asynchronous = options.asynchronous;
}

}  // namespace

LoadedWorkload load_workload(const Options& options) {
  const auto with_hints = [&](LoadedWorkload loaded) {
    if (options.hints.any()) loaded.workload.give_hints(options.hints);
    return loaded;
  };
  if (options.trace.empty()) {
    GeneratorOptions generator = options.generator;
    if (options.requests_max > 0) generator.requests = options.requests_max;
    return with_hints({.workload = generate_workload(generator),
                       .name = fmt::format("generated {}, seed {}", name(generator.kind), generator.seed)});
  }
  TraceOptions trace_options = options.trace_options;
  trace_options.block_size_tokens = options.generator.block_size_tokens;
  Trace trace = read_trace(std::filesystem::path(options.trace), trace_options);
  return with_hints({.workload = std::move(trace.workload),
                     .name = fmt::format("{} ({})", options.trace, trace.description()),
                     .bad_lines = trace.bad_lines,
                     .first_bad_line = std::move(trace.first_bad_line)});
}

StateSpec checkpoint_spec(const Options& options, const StateSpec& full) {
  return options.checkpoint_type ? quantised(full, *options.checkpoint_type) : full;
}

Budget make_budget(const Options& options, const StateSpec& full, std::int64_t bytes) {
  const auto kv_bytes = models::info(options.model).kv_bytes_per_token;
  require(kv_bytes.has_value(), "model", options.model, "its KV bytes per token are not known: a budget needs them");
  return {.bytes = bytes,
          .state_bytes = static_cast<std::int64_t>(checkpoint_spec(options, full).slot_bytes()),
          .kv_bytes_per_token = static_cast<std::int64_t>(*kv_bytes),
          .block_size_tokens = options.generator.block_size_tokens,
          .host_bytes = options.host_bytes,
          .file_bytes = options.disk_bytes,
          .speeds = options.speeds,
          .separate_checkpoints = options.checkpoint_type.has_value()};
}

RunDescription describe_run(const Options& options, const LoadedWorkload& loaded, const StateSpec& full) {
  RunDescription run{.workload = loaded.name,
                     .model = options.model,
                     .full_state = describe(full),
                     .block_size_tokens = options.generator.block_size_tokens,
                     .bad_lines = loaded.bad_lines,
                     .full_state_bytes = full.slot_bytes(),
                     .checkpoint_type = options.checkpoint_type ? std::string(name(*options.checkpoint_type)) : "model",
                     .checkpoint_bytes = checkpoint_spec(options, full).slot_bytes()};
  choose_capacity(options, loaded.workload, full, run);
  describe_cache(options, run);
  return run;
}

std::int32_t conv_window(const StateSpec& full) {
  const auto conv = std::ranges::find(full.tensors(), StateKind::conv, &StateTensorSpec::kind);
  return conv == full.tensors().end() ? 0 : static_cast<std::int32_t>(conv->window());
}

std::int32_t history_tokens(const Options& options, const StateSpec& full) {
  return std::max(conv_window(full) - options.drafts, 1);
}

std::unique_ptr<PassMover> make_mover(const Options& options, MemoryResource& memory, const StateSpec& full,
                                      const StateRoom& room, bool against_memcpy, RunDescription& run) {
  if (options.materialize_bytes == 0) return std::make_unique<NoPasses>();
  const auto image_bytes = static_cast<std::int64_t>(checkpoint_spec(options, full).slot_bytes());
  auto states = std::make_unique<DevicePasses>(
      memory, full,
      DevicePassesOptions{.room = room,
                          .history_tokens = history_tokens(options, full),
                          .drafts = options.drafts,
                          .materialize_bytes = static_cast<std::size_t>(options.materialize_bytes),
                          .checkpoint_type = options.checkpoint_type,
                          .against_memcpy = against_memcpy && !options.checkpoint_type,
                          .host_states = options.host_bytes / image_bytes,
                          .file_states = options.disk_bytes / image_bytes,
                          .file_folder = options.disk_folder,
                          .plant_wrong_slot = options.plant_wrong_slot});
  run.memory_state = describe(states->spec());
  run.memory_bytes = states->memory_bytes();
  return states;
}

}  // namespace stateport::replay
