// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>

#include "caches/request_replayer.hpp"
#include "runs/run_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace stateport::replay {
namespace {

CacheIndex index_of(const ServeOptions& options) {
  return is_tree(options.pools.cache) ? CacheIndex::tree : CacheIndex::hash;
}

MemoryCost memory_of(const RunInput& input) {
  const TenantOptions& tenants = input.tenants;
  require(input.kv_bytes_per_token || (tenants.quiet_floor_bytes == 0 && tenants.flood_most_bytes == 0), "model",
          input.model.name, "its KV bytes per token are not known: shares of tenants need them");
  MemoryCost memory{.state_bytes = static_cast<std::int64_t>(input.checkpoint.slot_bytes())};
  if (input.kv_bytes_per_token) memory.kv_bytes_per_token = static_cast<std::int64_t>(*input.kv_bytes_per_token);
  return memory;
}

RequestCacheOptions align_options(const ServeOptions& options, const RunInput& input, const RunDescription& run) {
  RequestCacheOptions cache = align_cache_options(input.workload, static_cast<std::int32_t>(run.slots), options.drafts,
                                                  options.asynchronous, index_of(options), options.schedule);
  cache.eviction = options.pools.order();
  cache.memory = memory_of(input);
  std::get<ColumnLayout>(cache.layout).tail_tokens = options.tail_tokens;
  StateGroup& group = std::get<ColumnLayout>(cache.layout).groups.front();
  group.layout_fingerprint = input.full.fingerprint();
  group.conv_window = conv_window(input.full);
  return cache;
}

/// By block hash or by tokens.
RequestCacheOptions pool_options(const ServeOptions& options, const RunInput& input, const RunDescription& run) {
  RequestCacheOptions cache = pool_cache_options(input.workload, index_of(options), run.blocks, run.slots,
                                                 options.asynchronous, options.schedule);
  auto& layout = std::get<SlotLayout>(cache.layout);
  layout.layout_fingerprint = input.checkpoint.fingerprint();
  layout.separate_checkpoints = input.model.checkpoint_type.has_value();
  layout.tail_tokens = options.tail_tokens;
  layout.breakpoint_saves = options.breakpoints ? 1 : 0;
  cache.hash = options.pools.hash;
  cache.eviction = options.pools.order();
  cache.memory = memory_of(input);
  return cache;
}

void describe_run(const ServeOptions& options, const Workload& workload, RunDescription& run) {
  const bool align = in_columns(options.pools.cache);
  describe_pools(options.pools, workload, run);
  const std::int32_t concurrency = options.schedule.concurrency;
  if (run.unlimited) run.blocks = run.slots = align_blocks_max(workload, options.drafts, concurrency);
  if (!align && options.pools.blocks == 0) run.blocks = std::max(run.blocks, served_blocks_min(workload, concurrency));
  if (align) run.blocks = run.slots;
  run.checkpoint = align ? "boundaries" : "request cache";
  if (options.tail_tokens != 0) run.checkpoint += fmt::format(", tail {}", options.tail_tokens);
  if (options.breakpoints) run.checkpoint += ", breakpoints";
  if (options.close_sessions) run.checkpoint += ", sessions closed";
  if (options.mistaken_closes > 0) run.checkpoint += fmt::format(", {} % by mistake", options.mistaken_closes);
  run.drafts = options.drafts;
  run.accept = options.accept;
  run.asynchronous = options.asynchronous;
  run.schedule = options.schedule;
}

void serve(const RunInput& input, const RequestReplayOptions& requests, PassMover& mover, bool show_progress,
           Report& report) {
  RequestReplayer replayer(input.workload, requests, mover);
  run_requests(input, replayer, show_progress, [](std::int64_t) {});
  replayer.check_invariants();
  report.replay = replayer.counts();
  report.passes = replayer.pass_counts();
  report.cache = replayer.cache_counts();
  report.mover = mover.counts();
}

}  // namespace

int run(const ServeOptions& options) {
  OutputFile json(options.common.json_file);
  const RunInput input = read_input("serve", options.common, options.drafts);
  Report report{.run = input.run};
  describe_run(options, input.workload, report.run);
  RequestReplayOptions requests{.cache = in_columns(options.pools.cache) ? align_options(options, input, report.run)
                                                                         : pool_options(options, input, report.run),
                                .accept = options.accept,
                                .seed = options.common.workload.generator.seed,
                                .history_tokens = history_tokens(input),
                                .breakpoints = options.breakpoints,
                                .mistaken_closes = options.mistaken_closes,
                                .running_max = options.schedule.running_max,
                                .step_tokens_max = options.schedule.step_tokens_max,
                                .refresh = options.schedule.refresh,
                                .tenants = input.tenants};
  requests.cache.tenant_quotas = input.tenants.quotas();
  requests.cache.unchecked_layout = false;
  constexpr std::int32_t sessions_max = 1 << 16;  // more than a workload has at a time
  if (options.close_sessions) requests.cache.sessions.remembered = sessions_max;
  // A pass without states, whose planning times count: before the runtime starts, whose waiting threads would share
  // the cores, and with the caches to itself.
  requests.cache.events = false;
  NoPasses none;
  serve(input, requests, none, false, report);
  report.bookkeeping = report.replay;
  std::vector<double> planning_ns = std::move(report.passes->planning_ns);
  requests.cache.events = true;
  const Runtime runtime;
  report.run.device = runtime.device().name;
  DeviceResource memory;
  const std::unique_ptr<PassMover> mover =
      make_mover(input, options.states, memory, room_for(requests.cache), false, {}, report.run);
  serve(input, requests, *mover, true, report);
  check_passes(report);
  report.passes->planning_ns = std::move(planning_ns);
  return finish(report, json);
}

}  // namespace stateport::replay
