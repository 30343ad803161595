// SPDX-License-Identifier: Apache-2.0
#include "caches/align_cache.hpp"

#include <stateport/core/align/state_hit.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>

namespace stateport::replay {
namespace {

std::int32_t with_dummy(const AlignCacheOptions& options) {
  require(options.requests >= 1, "requests", options.requests, "at least 1");
  const std::int64_t fewest = options.requests * blocks_held_max(options.drafts);
  require(options.blocks >= fewest, "slots", options.blocks,
          "too few for what runs at the same time: 4 + drafts for each request");
  require(options.blocks < std::numeric_limits<std::int32_t>::max() - 1, "slots", options.blocks, "at most 2^31 - 3");
  return options.blocks + 1;
}

constexpr BlockHash key_of(Content prefix) {
  return static_cast<BlockHash>(prefix & (~std::uint64_t{0} >> 1));  // names are odd, so never 0
}
constexpr BlockId in_pool(std::int32_t block) {
  return BlockId{block - 1};
}
constexpr BlockId from_pool(BlockId block) {
  return BlockId{block.value() + 1};
}

}  // namespace

void AlignCache::Evictions::on_blocks_deregistered(std::span<const BlockId>, std::span<const BlockHash> hashes) {
  count += std::ranges::count_if(hashes, [](BlockHash hash) { return hash > 0; });
}

AlignCache::AlignCache(const AlignCacheOptions& options)
    : options_(options), pool_({.blocks = with_dummy(options)}), evictions_(pool_) {
  require(options.block_size_tokens >= 1 && options.block_size_tokens <= std::numeric_limits<std::int32_t>::max(),
          "block_size_tokens", options.block_size_tokens, "1 to 2^31 - 1");
  for (std::int32_t i = 0; i < options.requests; ++i)
    rows_.emplace_back(static_cast<std::int32_t>(options.block_size_tokens), options.drafts);
}

AlignHit AlignCache::begin(RequestId request, std::span<const Content> boundaries, std::int64_t prompt_tokens) {
  const std::int64_t block_size = options_.block_size_tokens;
  const auto cached = [&](std::int32_t column) {
    return pool_.find(key_of(boundaries[static_cast<std::size_t>(column) + 1]));
  };
  const std::int64_t usable = prompt_tokens - 1;  // the forward needs a token
  const StateHit found =
      longest_state_hit(usable, block_size, block_size, [&](std::int32_t column) { return cached(column).valid(); });
  AlignHit hit{.tokens = found.tokens};
  hit.lost = reason_lost(boundaries.first(static_cast<std::size_t>(prompt_tokens / block_size) + 1),
                         found.tokens / block_size, usable / block_size);
  if (found.tokens == 0) return hit;
  const BlockId block = cached(found.column);
  pool_.retain({&block, 1});
  hit.block = from_pool(block);
  row(request).start_from_hit(found.column, hit.block);
  return hit;
}

/// `boundaries` of the prompt alone.
std::optional<LostHit> AlignCache::reason_lost(std::span<const Content> boundaries, std::int64_t hit_blocks,
                                               std::int64_t usable_blocks) const {
  const auto blocks = static_cast<std::int64_t>(boundaries.size()) - 1;
  std::int64_t matched = hit_blocks;
  while (matched < blocks && computed_.contains(boundaries[static_cast<std::size_t>(matched) + 1])) ++matched;
  if (matched == hit_blocks) return std::nullopt;
  if (matched > usable_blocks && pool_.find(key_of(boundaries[static_cast<std::size_t>(matched)])).valid())
    return LostHit::too_few_tokens;
  for (std::int64_t depth = hit_blocks + 1; depth <= matched; ++depth)
    if (published_.contains(boundaries[static_cast<std::size_t>(depth)])) return LostHit::evicted;
  return LostHit::no_checkpoint;
}

std::span<const BlockId> AlignCache::make_room(RequestId request, std::int64_t processed, std::int64_t cover) {
  row(request).release(processed, released_);
  give_back();
  fresh_.resize(static_cast<std::size_t>(row(request).fresh_blocks(cover)));
  const bool allocated = pool_.allocate(fresh_);
  require_invariant(allocated, "AlignCache", "the running requests hold more blocks than they can");
  std::ranges::transform(fresh_, fresh_.begin(), &from_pool);
  row(request).grow(cover, fresh_);
  return fresh_;
}

std::span<const std::int32_t> AlignCache::columns(RequestId request) const {
  return rows_[request.index()].columns();
}

void AlignCache::publish(RequestId request, std::int32_t column, Content prefix) {
  const BlockId block = in_pool(columns(request)[static_cast<std::size_t>(column)]);
  const BlockHash key = key_of(prefix);
  pool_.register_hashes({&block, 1}, {&key, 1});
  published_.insert(prefix);
}

void AlignCache::end(RequestId request, std::span<const Content> boundaries) {
  for (const Content prefix : boundaries)
    if (prefix != empty_content) computed_.insert(prefix);
  row(request).clear(released_);
  give_back();
}

void AlignCache::give_back() {
  for (BlockId& block : released_) block = in_pool(block.value());
  pool_.release(released_);
  released_.clear();
}

CacheCounts AlignCache::counts() const {
  CacheCounts counts;
  counts.state_evictions = evictions_.count;
  counts.resident_states = pool_.cached_blocks();
  counts.resident_blocks = pool_.cached_blocks();
  return counts;
}

void AlignCache::check_invariants() const {
  pool_.check_invariants();
  std::vector<std::int32_t> owners(static_cast<std::size_t>(options_.blocks) + 1, 0);
  for (const ColumnTable& row : rows_) {
    row.check_invariants();
    for (const std::int32_t block : row.columns()) ++owners[static_cast<std::size_t>(block)];
  }
  for (std::int32_t block = 1; block <= options_.blocks; ++block)
    require_invariant(pool_.ref_count(in_pool(block)) == owners[static_cast<std::size_t>(block)], "AlignCache",
                      "a block is referenced by other columns than those that name it");
}

}  // namespace stateport::replay
