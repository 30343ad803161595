// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_rules.hpp>

#include "engine_arena.hpp"
#include "engine_tiers.hpp"
#include "request_engine_cache.hpp"

#include <variant>

namespace stateport::engine {
namespace {

/// Blocks of each group: the most that running requests can hold, and some to keep.
std::int32_t blocks_of(const RequestCacheOptions& cache, AlignMode mode, const CacheOptions& options) {
  const bool tree = cache.index == CacheIndex::tree;
  const auto resident =
      static_cast<std::int32_t>(resident_blocks(mode, cache.max_request_tokens, options.block_size, options.drafts, 0));
  // A request that runs keeps one checkpoint in a tree.
  const std::int32_t ahead = (cache.overlap ? 1 : 0) + (tree ? 1 : 0);
  if (mode == AlignMode::all)  // in a tree a request gives back the blocks that it has passed
    return resident + (tree ? ahead + options.checkpoints : 3 * options.checkpoints);
  return options.max_running * (resident + ahead) + options.checkpoints;
}

ColumnLayout columns_of(const RequestCacheOptions& cache, AlignMode mode, const CacheOptions& options) {
  ColumnLayout layout{.mode = mode, .groups = {}, .tail_tokens = mode == AlignMode::align ? options.tail : 0};
  for (std::int32_t g = 0; g < options.state_groups; ++g)
    layout.groups.push_back({.block_size_tokens = options.block_size * (g + 1),
                             .blocks = blocks_of(cache, mode, options),
                             .conv_window = static_cast<std::int32_t>(conv_history) + options.drafts});
  return layout;
}

RequestCacheOptions without_tiers(std::string_view name, const CacheOptions& options) {
  const bool all = name.ends_with("all");
  const bool in_columns = all || name.ends_with("align");
  RequestCacheOptions cache{.index = name.starts_with("tree") ? CacheIndex::tree : CacheIndex::hash,
                            .layout = SlotLayout{.checkpoints = options.checkpoints,
                                                 .scan_alignment_tokens = name == "tree-copy" ? -1 : options.alignment,
                                                 .tail_tokens = options.tail,
                                                 .breakpoint_saves = options.named_saves,
                                                 .decode_checkpoint_tokens = options.block_size},
                            .max_requests = options.max_running,
                            .max_request_tokens = options.max_tokens,
                            .drafts = options.drafts,
                            .block_size_tokens = options.block_size,
                            .kv_tokens = options.kv_tokens,
                            .hash = BlockHashKind::xxh3_128,
                            .hash_seed = options.tenants ? 0x5eedu : 0u,
                            .epoch = options.epoch,
                            .overlap = options.overlap,
                            .scrub = options.tenants,
                            .integrity = options.integrity,
                            .tenant_quotas = options.tenants ? 2 : 0,
                            .share_running = options.share};
  // A batch that is planned ahead may find that the one before it kept all drafts.
  if (options.overlap) cache.max_request_tokens += 1 + options.drafts;
  cache.kv_tokens += cache.max_request_tokens - options.max_tokens;
  // Two requests that compute one prefix at the same time both keep their blocks. Once the first has gone, each of its
  // blocks may still be the parent of a block of the second, and is not evicted before that.
  if (cache.index == CacheIndex::hash) cache.kv_tokens += options.max_tokens;
  if (cache.index == CacheIndex::tree || !in_columns) cache.eviction = options.eviction;
  if (in_columns) cache.layout = columns_of(cache, all ? AlignMode::all : AlignMode::align, options);
  const auto fingerprint = [&](std::size_t g) { return StateStores::spec(options, cache, g).fingerprint(); };
  if (auto* const slots = std::get_if<SlotLayout>(&cache.layout)) slots->layout_fingerprint = fingerprint(0);
  if (auto* const columns = std::get_if<ColumnLayout>(&cache.layout))
    for (std::size_t g = 0; g < columns->groups.size(); ++g) columns->groups[g].layout_fingerprint = fingerprint(g);
  return cache;
}

/// Pins and sessions, and prefetches if there are tiers, with memory for what is held besides the requests.
void hold(RequestCacheOptions& cache) {
  constexpr std::int32_t pins = 2;
  constexpr std::int64_t blocks = 8;
  cache.prefixes = {.pins = pins, .pinned_bytes = cache.memory.of(blocks * cache.block_size_tokens, pins)};
  cache.sessions = {.remembered = 8, .most_bytes = cache.memory.of(4 * blocks * cache.block_size_tokens, 4)};
  cache.kv_tokens += 2 * blocks * cache.block_size_tokens;
  if (auto* const slots = std::get_if<SlotLayout>(&cache.layout)) slots->checkpoints += 2 * pins;
  if (auto* const columns = std::get_if<ColumnLayout>(&cache.layout))
    for (StateGroup& group : columns->groups) group.blocks += 2 * pins;
}

}  // namespace

RequestCacheOptions request_cache_options(std::string_view name, const CacheOptions& options) {
  RequestCacheOptions cache = without_tiers(name, options);
  std::size_t state_bytes = 0;
  for (std::size_t g = 0; g < group_count(cache); ++g) state_bytes += StateStores::spec(options, cache, g).slot_bytes();
  const StateSpec block = KvStore::spec(Model::attention_layers, 1, options.type);
  cache.memory = {.state_bytes = static_cast<std::int64_t>(state_bytes),
                  .kv_bytes_per_token = static_cast<std::int64_t>(block.slot_bytes())};
  if (options.held) hold(cache);
  if (auto* const slots = std::get_if<SlotLayout>(&cache.layout); slots && options.arena.kv_blocks > 0) {
    slots->checkpoints += 6;
    cache.kv_tokens += cache.max_request_tokens;
    slots->arena = arena_options(options, cache);
  }
  if (options.tiers.any()) cache.tiers = tier_options(options, cache);
  if (options.tiers.any() && options.held) {
    cache.prefixes.prefetches = 2;
    cache.prefixes.prefetched_bytes = cache.prefixes.pinned_bytes;
  }
  return cache;
}

}  // namespace stateport::engine
