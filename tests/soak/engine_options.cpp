// SPDX-License-Identifier: Apache-2.0
#include "engine_options.hpp"

#include <stateport/parts/align_planner.hpp>

#include "real_tiers.hpp"

#include <cstdint>

namespace stateport::soak {

namespace {

constexpr std::int32_t block_size = 8;  ///< tokens
constexpr std::int64_t request_tokens = 288;

RequestCacheOptions common(CacheIndex index, int number, bool is_real) {
  return {.index = index,
          .max_requests = is_real ? 4 : 6,
          .max_request_tokens = request_tokens,
          .drafts = number == 0 ? 2 : 3,
          .block_size_tokens = block_size,
          .kv_tokens = is_real ? 1536 : 3072,
          .memory = {.state_bytes = 4096, .kv_bytes_per_token = 64},
          .position_tokens = block_size,
          .hash = BlockHashKind::xxh3_128,
          .overlap = number == 0,
          .events = true};
}

std::int64_t three_quarters(const RequestCacheOptions& options, std::int32_t checkpoints) {
  return options.memory.of(options.kv_tokens * 3 / 4, checkpoints * 3 / 4);
}

void set_hash_slots(RequestCacheOptions& options, int number, std::int32_t checkpoints) {
  options.eviction = number == 0 ? EvictionOrder::lru : EvictionOrder::gdsf;
  options.layout = SlotLayout{.layout_fingerprint = 3,
                              .checkpoints = checkpoints,
                              .placement = number == 0 ? CheckpointPlacement::passes : CheckpointPlacement::branch,
                              .decode_checkpoint_tokens = number == 0 ? 2 * block_size : 0,
                              .budget_bytes = number == 1 ? three_quarters(options, checkpoints) : 0};
}

void set_tree_slots(RequestCacheOptions& options, int number, std::int32_t checkpoints) {
  options.eviction = number == 0 ? EvictionOrder::hix : EvictionOrder::gdsf;
  options.layout = SlotLayout{.layout_fingerprint = 3,
                              .checkpoints = checkpoints,
                              .separate_checkpoints = number == 0,
                              .placement = number == 0 ? CheckpointPlacement::last : CheckpointPlacement::rungs,
                              .spare_checkpoint_tokens = number == 0 ? 4 * block_size : 0,
                              .decode_checkpoint_tokens = number == 0 ? 0 : 2 * block_size,
                              .budget_bytes = number == 0 ? three_quarters(options, checkpoints) : 0};
}

void set_columns(RequestCacheOptions& options, int number) {
  options.eviction = number == 0 ? EvictionOrder::lru : EvictionOrder::lfu;
  if (options.index == CacheIndex::tree && number == 0) options.eviction = EvictionOrder::hix;
  ColumnLayout layout{.mode = number == 0 ? AlignMode::align : AlignMode::all};
  for (const std::int32_t size : {block_size, 2 * block_size}) {
    const auto one =
        static_cast<std::int32_t>(resident_blocks(layout.mode, options.max_request_tokens, size, options.drafts, 0));
    layout.groups.push_back({.block_size_tokens = size,
                             .blocks = options.max_requests * one + 32,
                             .conv_window = 3 + options.drafts,
                             .layout_fingerprint = 5});
  }
  options.layout = layout;
}

}  // namespace

EngineSetup engine_setup(Combination index, int number, bool is_real) {
  EngineSetup setup{.options = common(index_of(index), number, is_real)};
  RequestCacheOptions& options = setup.options;
  const std::int32_t checkpoints = is_real ? 16 : 32;
  if (in_columns(index))
    set_columns(options, number);
  else if (by_tokens(index))
    set_tree_slots(options, number, checkpoints);
  else
    set_hash_slots(options, number, checkpoints);
  TierOptions& tiers = options.tiers;
  if (is_real)
    RealTiers::set_image_bytes(options);
  else
    tiers.state_image_bytes = 4096, tiers.kv_image_bytes = 512;
  const std::int64_t checkpoint = tiers.state_image_bytes + 4 * tiers.kv_image_bytes;
  tiers.host_bytes = (is_real ? 16 : 40) * checkpoint;
  tiers.file_bytes = (is_real ? 32 : 80) * checkpoint;
  tiers.remote_bytes = (is_real ? 64 : 160) * checkpoint;
  tiers.write_through = number == 1;
  if (number == 1) tiers.queue_bytes = 16 * checkpoint;
  tiers.max_finds = number == 0 ? 4 : 4096;
  if (is_real || number == 1) setup.requests_of_life = is_real ? 500 : 20000;
  if (number == 1) options.share_running = {.least_tokens = 32, .longest_commits = 200};
  if (number == 1) {
    const std::int64_t held_bytes = options.memory.of(100, 2);
    options.prefixes = {.pins = 3, .pinned_bytes = held_bytes, .prefetches = 2, .prefetched_bytes = held_bytes};
    options.sessions = {.remembered = 64, .idle_s = 100, .most_bytes = options.memory.of(400, 6)};
  }
  if (number == 1) setup.requests_to_epoch = is_real ? 120 : 30000;
  if (number == 0) setup.requests_to_reset = is_real ? 150 : 100000;
  return setup;
}

void give_arena(RequestCacheOptions& options) {
  SlotLayout& layout = std::get<SlotLayout>(options.layout);
  const std::int64_t bytes = options.memory.of(options.kv_tokens, layout.checkpoints + options.max_requests) * 2 / 3;
  layout.arena = {.bytes = bytes,
                  .kv = {.count = 4, .bytes = options.memory.of(4 * options.block_size_tokens, 0)},
                  .states = {.count = 1, .bytes = options.memory.of(0, 1)}};
}

}  // namespace stateport::soak
