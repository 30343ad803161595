// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_mode.hpp>

#include "engine_tiers.hpp"
#include "request_engine_cache.hpp"

namespace stateport::engine {
namespace {

/// Blocks of each group: what running requests hold at most, and some to keep.
std::int32_t blocks_of(const RequestCacheOptions& cache, const CacheOptions& options) {
  const auto resident = static_cast<std::int32_t>(
      resident_blocks(cache.align_mode, cache.max_request_tokens, options.block_size, options.drafts, 0));
  // A request that runs keeps one checkpoint in a tree.
  const std::int32_t ahead = (cache.overlap ? 1 : 0) + (by_tokens(cache.index) ? 1 : 0);
  if (cache.align_mode == AlignMode::all)  // in a tree a request gives back the blocks that it has passed
    return resident + (by_tokens(cache.index) ? ahead + options.checkpoints : 3 * options.checkpoints);
  return options.max_running * (resident + ahead) + options.checkpoints;
}

RequestCacheOptions without_tiers(std::string_view name, const CacheOptions& options) {
  RequestCacheOptions cache{.max_requests = options.max_running,
                            .max_request_tokens = options.max_tokens,
                            .drafts = options.drafts,
                            .block_size_tokens = options.block_size,
                            .kv_tokens = options.kv_tokens,
                            .checkpoints = options.checkpoints,
                            .scan_alignment_tokens = options.alignment,
                            .decode_checkpoint_tokens = options.block_size,
                            .hash = BlockHashKind::xxh3_128,
                            .hash_seed = options.tenants ? 0x5eedu : 0u,
                            .overlap = options.overlap,
                            .scrub = options.tenants};
  // A batch that is planned ahead may find that the one before it kept all drafts.
  if (options.overlap) cache.max_request_tokens += 1 + options.drafts;
  cache.kv_tokens += cache.max_request_tokens - options.max_tokens;
  if (name == "align" || name == "all") cache.index = CacheIndex::align;
  if (name == "tree-align" || name == "tree-all") cache.index = CacheIndex::tree_align;
  if (name == "slots") cache.index = CacheIndex::slots;
  if (name == "tree-copy") cache.scan_alignment_tokens = -1;
  // Two requests that compute one prefix at the same time both keep their blocks. Once the first has gone, each of its
  // blocks may still be the parent of a block of the second, and is not evicted before that.
  if (!by_tokens(cache.index)) cache.kv_tokens += options.max_tokens;
  if (cache.index != CacheIndex::align) cache.eviction = options.eviction;
  if (!in_columns(cache.index)) {
    cache.layout_fingerprint = StateStores::spec(options, cache, 0).fingerprint();
    return cache;
  }
  cache.align_mode = name.ends_with("all") ? AlignMode::all : AlignMode::align;
  for (std::int32_t g = 0; g < options.state_groups; ++g)
    cache.groups.push_back({.block_size_tokens = options.block_size * (g + 1),
                            .blocks = blocks_of(cache, options),
                            .conv_window = static_cast<std::int32_t>(conv_history) + options.drafts});
  for (std::size_t g = 0; g < cache.groups.size(); ++g)
    cache.groups[g].layout_fingerprint = StateStores::spec(options, cache, g).fingerprint();
  return cache;
}

}  // namespace

RequestCacheOptions request_cache_options(std::string_view name, const CacheOptions& options) {
  RequestCacheOptions cache = without_tiers(name, options);
  std::size_t state_bytes = 0;
  for (std::size_t g = 0; g < group_count(cache); ++g) state_bytes += StateStores::spec(options, cache, g).slot_bytes();
  const StateSpec block = KvStore::spec(Model::attention_layers, 1, options.type);
  cache.memory = {.state_bytes = static_cast<std::int64_t>(state_bytes),
                  .kv_bytes_per_token = static_cast<std::int64_t>(block.slot_bytes())};
  if (options.tiers.any()) cache.tiers = tier_options(options, cache);
  return cache;
}

}  // namespace stateport::engine
