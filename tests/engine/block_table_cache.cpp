// SPDX-License-Identifier: Apache-2.0
#include "block_table_cache.hpp"

#include <stateport/core/align/state_hit.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

#include "kv_blocks.hpp"

namespace stateport::engine {
namespace {

/// With two groups the delta nets have one of their own, with blocks of twice the size.
std::vector<std::size_t> layers_of(const CacheOptions& options, std::size_t group) {
  if (options.state_groups == 1) return {0, 1, 2, 3};
  return {group, group + 2};
}

/// The convolution's window holds one input more for each draft.
StateSpec spec_of(const CacheOptions& options, std::size_t group) {
  const StateLayout layout{.conv_window = static_cast<std::int64_t>(conv_history) + options.drafts,
                           .conv_layout = options.conv_layout};
  return Model::state_spec(layout, layers_of(options, group));
}

}  // namespace

BlockTableCache::Group::Group(const CacheOptions& options, std::size_t index, std::int32_t blocks, const Stream& stream)
    : block_size(options.block_size * static_cast<std::int32_t>(index + 1)),
      pool({.blocks = blocks + 2}),
      store(memory, spec_of(options, index), {.slots = blocks + 2}),
      io(store, stream) {
  io.poison();
  take_null_block();
  pool.add_listener(*this);
}

/// Block 0 stands for a column that holds nothing: it is never handed out again.
void BlockTableCache::Group::take_null_block() {
  std::vector<BlockId> all(static_cast<std::size_t>(pool.free_blocks()));
  static_cast<void>(pool.allocate(all));
  std::erase(all, BlockId{null_block});
  pool.release(all);
}

void BlockTableCache::Group::reset() {
  pool.reset();
  take_null_block();
}

void BlockTableCache::Group::on_blocks_deregistered(std::span<const BlockId>, std::span<const BlockHash> hashes) {
  evictions += std::ranges::count_if(hashes, [](BlockHash hash) { return hash > 0; });
}

BlockTableCache::BlockTableCache(const CacheOptions& options, AlignMode mode, std::int32_t group_blocks)
    : options_(options),
      planner_(planner_options(mode, group_blocks)),
      hasher_({.kind = BlockHashKind::xxh3_128, .block_size_tokens = options.block_size}),
      kv_({.blocks = kv_pool_blocks(options)}),
      requests_(static_cast<std::size_t>(options.max_running)) {
  for (std::size_t g = 0; g < static_cast<std::size_t>(options.state_groups); ++g)
    groups_.emplace_back(options, g, group_blocks, stream_);
}

AlignOptions BlockTableCache::planner_options(AlignMode mode, std::int32_t group_blocks) const {
  AlignOptions planner{.mode = mode, .drafts = options_.drafts, .max_requests = options_.max_running, .groups = {}};
  for (std::int32_t g = 0; g < options_.state_groups; ++g)
    planner.groups.push_back({.block_size_tokens = options_.block_size * (g + 1),
                              .blocks = group_blocks + 2,
                              .conv_window = static_cast<std::int32_t>(conv_history) + options_.drafts});
  return planner;
}

std::int64_t BlockTableCache::longest_hit(const Sequence& sequence, std::span<const BlockHash> keys,
                                          std::size_t kv_blocks) const {
  const std::int64_t grid = groups_.back().block_size;  // a multiple of every group's
  const auto key_at = [&](std::int64_t tokens) {
    return keys[static_cast<std::size_t>(tokens / options_.block_size) - 1];
  };
  const std::int64_t known_kv = static_cast<std::int64_t>(kv_blocks) * options_.block_size;
  return longest_state_hit(std::min(sequence.known() - 1, known_kv), grid, grid,
                           [&](std::int32_t column) {
                             return std::ranges::all_of(groups_, [&](const Group& group) {
                               return group.pool.find(key_at((column + 1) * grid)).valid();
                             });
                           })
      .tokens;
}

bool BlockTableCache::start(Sequence& sequence) {
  const std::size_t slot = index_of(sequence);
  Request& r = requests_[slot];
  r = {};
  hasher_.hash_prompt(sequence.tokens, {}, r.hashes);
  r.kv_blocks.resize(r.hashes.keys.size());
  const std::size_t matched = kv_.find_prefix(r.hashes.keys, r.kv_blocks);
  sequence.computed = longest_hit(sequence, r.hashes.keys, matched);
  const auto kept = static_cast<std::size_t>(sequence.computed / options_.block_size);
  r.kv_blocks.resize(kept);
  kv_.retain(r.kv_blocks);
  r.registered = kept;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (kept == 0) continue;
    const BlockId block = groups_[g].pool.find(r.hashes.keys[kept - 1]);
    groups_[g].pool.retain({&block, 1});
    begin_row(slot, g, sequence.computed, block);
  }
  began(slot, sequence.computed);
  counts_.lookup_tokens += sequence.known();
  counts_.hit_tokens += sequence.computed;
  return true;
}

bool BlockTableCache::reserve_kv(const Row& row) {
  return grow_kv(kv_, row.start + row.scheduled, options_.block_size, requests_[index_of(*row.sequence)].kv_blocks,
                 row.sequence->kv);
}

bool BlockTableCache::take_blocks(std::size_t group, std::span<BlockId> blocks) {
  if (!groups_[group].pool.allocate(blocks)) return false;
  PublicationCheck& publication = planner_.publication(static_cast<std::int32_t>(group));
  for (const BlockId block : blocks) publication.forget(block);
  return true;
}

SlotId BlockTableCache::block_at(std::size_t slot, std::size_t group, std::int32_t column) const {
  const std::span<const std::int32_t> row = columns(slot, group);
  const std::int32_t block = block_of_column(row.data(), static_cast<std::int32_t>(row.size()), column);
  require_invariant(block > null_block, "BlockTableCache", "a state is looked for in a null column");
  return SlotId{block};
}

void BlockTableCache::publish(const Sequence& sequence) {
  register_kv(sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) publish_states(sequence, g);
}

void BlockTableCache::register_kv(const Sequence& sequence) {
  Request& r = requests_[index_of(sequence)];
  const auto full = static_cast<std::size_t>(sequence.computed / options_.block_size);
  if (full <= r.registered) return;
  hasher_.hash_prompt(sequence.tokens, {}, r.hashes);
  register_chain(kv_, r.kv_blocks, r.hashes.keys, r.registered, full);
  r.registered = full;
}

void BlockTableCache::publish_states(const Sequence& sequence, std::size_t g) {
  const std::size_t slot = index_of(sequence);
  Group& group = groups_[g];
  const std::span<const std::int32_t> row = columns(slot, g);
  const std::vector<BlockHash>& keys = requests_[slot].hashes.keys;
  for (std::int64_t boundary = group.block_size; boundary <= sequence.computed; boundary += group.block_size) {
    const BlockId block{row[static_cast<std::size_t>(boundary / group.block_size) - 1]};
    if (block.value() == null_block || group.pool.hash(block) > 0) continue;
    // The fault of engines that register whatever lies below a boundary.
    const bool right = planner_.publication(static_cast<std::int32_t>(g)).publish(block, boundary);
    if (!right && options_.fault != Fault::older_split) continue;
    group.pool.register_hashes({&block, 1}, {&keys[static_cast<std::size_t>(boundary / options_.block_size) - 1], 1});
  }
}

void BlockTableCache::stop(Sequence& sequence, bool aborted) {
  const std::size_t slot = index_of(sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId> released;
    end_row(slot, g, released);
    groups_[g].pool.release(released);
  }
  kv_.release(requests_[slot].kv_blocks);
  requests_[slot] = {};
  ended(slot, aborted);
}

void BlockTableCache::reset() {
  kv_.reset();
  for (Group& group : groups_) group.reset();
}

std::size_t BlockTableCache::kv_indices() const {
  return static_cast<std::size_t>(kv_.block_count() * options_.block_size);
}

CacheCounts BlockTableCache::counts() const {
  CacheCounts counts = counts_;
  for (const Group& group : groups_) counts.evictions += group.evictions;
  return counts;
}

void BlockTableCache::check_invariants() const {
  kv_.check_invariants();
  for (const Group& group : groups_) group.pool.check_invariants();
  planner_.check_invariants();
}

}  // namespace stateport::engine
