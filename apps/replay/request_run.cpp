// SPDX-License-Identifier: Apache-2.0
#include "request_run.hpp"

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/models.hpp>

#include "run_setup.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace stateport::replay {
namespace {

RequestCacheOptions align_options(const Options& options, const Workload& workload, const StateSpec& full,
                                  const RunDescription& run) {
  RequestCacheOptions cache =
      align_cache_options(workload, static_cast<std::int32_t>(run.slots), options.drafts, options.asynchronous);
  StateGroup& group = std::get<ColumnLayout>(cache.layout).groups.front();
  group.layout_fingerprint = full.fingerprint();
  group.conv_window = conv_window(full);
  return cache;
}

/// By block hash or by tokens.
RequestCacheOptions pool_options(const Options& options, const Workload& workload, const StateSpec& full,
                                 const RunDescription& run) {
  const bool tree = options.cache == CacheKind::tree;
  RequestCacheOptions cache = pool_cache_options(workload, tree ? CacheIndex::tree : CacheIndex::hash, run.blocks,
                                                 run.slots, options.asynchronous);
  const StateSpec checkpoint = checkpoint_spec(options, full);
  auto& layout = std::get<SlotLayout>(cache.layout);
  layout.layout_fingerprint = checkpoint.fingerprint();
  layout.separate_checkpoints = options.checkpoint_type.has_value();
  cache.hash = options.hash;
  cache.eviction = options.eviction.value_or(tree ? EvictionOrder::hix : EvictionOrder::lru);
  const auto kv_bytes = models::info(options.model).kv_bytes_per_token;
  cache.memory.state_bytes = static_cast<std::int64_t>(checkpoint.slot_bytes());
  if (kv_bytes) cache.memory.kv_bytes_per_token = static_cast<std::int64_t>(*kv_bytes);
  return cache;
}

void serve(const Workload& workload, const RequestReplayOptions& requests, PassMover& mover, bool show_progress,
           const RunRequests& run, Report& report) {
  RequestReplayer replayer(workload, requests, mover);
  run(replayer, show_progress);
  replayer.check_invariants();
  report.replay = replayer.counts();
  report.passes = replayer.pass_counts();
  report.cache = replayer.cache_counts();
  report.mover = mover.counts();
}

}  // namespace

void replay_requests(const Options& options, const Workload& workload, const StateSpec& full, Report& report,
                     const RunRequests& run) {
  const bool align = options.cache == CacheKind::align;
  RequestReplayOptions requests{.cache = align ? align_options(options, workload, full, report.run)
                                               : pool_options(options, workload, full, report.run),
                                .accept = options.accept,
                                .seed = options.generator.seed,
                                .history_tokens = history_tokens(options, full)};
  requests.cache.unchecked_layout = false;
  // Before the runtime starts, whose waiting threads would share the cores, and with the caches to itself.
  requests.cache.events = false;
  NoPasses none;
  serve(workload, requests, none, false, run, report);
  report.bookkeeping = report.replay;
  std::vector<double> planning_ns = std::move(report.passes->planning_ns);
  requests.cache.events = true;
  const Runtime runtime;
  report.run.device = runtime.device().name;
  DeviceResource memory;
  const std::unique_ptr<PassMover> mover =
      make_mover(options, memory, full, room_for(requests.cache), false, report.run);
  serve(workload, requests, *mover, true, run, report);
  report.passes->planning_ns = std::move(planning_ns);
}

}  // namespace stateport::replay
