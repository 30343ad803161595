// SPDX-License-Identifier: Apache-2.0
#include "slots_cache.hpp"

#include "kv_blocks.hpp"

namespace stateport::engine {
namespace {

std::vector<SlotId> take(SlotPool& slots, std::int32_t count) {
  std::vector<SlotId> taken(static_cast<std::size_t>(count));
  static_cast<void>(slots.allocate(taken));
  return taken;
}

std::int32_t scratch_states(const CacheOptions& options) {
  return options.max_running * max_checkpoints_per_chunk;
}

}  // namespace

SlotsCache::SlotsCache(const CacheOptions& options)
    : options_(options),
      hasher_({.kind = BlockHashKind::xxh3_128, .block_size_tokens = options.block_size}),
      blocks_({.blocks = kv_pool_blocks(options)}),
      slots_(options.max_running + options.checkpoints),
      live_(take(slots_, options.max_running)),
      allocator_(slots_, blocks_),
      matcher_(blocks_, &allocator_,
               {.block_size_tokens = options.block_size, .layout_fingerprint = live_state_spec(options).fingerprint()}),
      planner_(allocator_, {.block_size_tokens = options.block_size,
                            .alignment_tokens = options.alignment,
                            .max_rows = options.max_running,
                            .layout_fingerprint = live_state_spec(options).fingerprint()}),
      states_(options, slots_.capacity_slots()),
      scratch_(memory_, live_state_spec(options), {.slots = scratch_states(options)}),
      scratch_io_(scratch_, states_.stream()),
      committer_(scratch_, states_.store(), states_.store()),
      requests_(static_cast<std::size_t>(options.max_running)) {
  scratch_io_.poison();
}

bool SlotsCache::start(Sequence& sequence) {
  Request& r = request(sequence);
  r = {};
  hasher_.hash_prompt(sequence.tokens, {}, r.hashes);
  r.blocks.resize(r.hashes.keys.size());
  const BlockMatch match = matcher_.match(
      {.chunk_tokens = sequence.known(), .keys = r.hashes.keys, .prefixes = r.hashes.prefixes}, r.blocks);
  r.blocks.resize(static_cast<std::size_t>(match.matched_blocks));
  blocks_.retain(r.blocks);
  r.registered = r.blocks.size();
  r.matched_blocks = match.matched_blocks;
  r.skip = match.skip_tokens;
  r.restored = false;
  if (match.state) {
    r.restore = allocator_.restore_to_live(match.state->block, live(sequence), match.wanted);
    r.pinned = allocator_.pin(match.state->block);
  }
  sequence.computed = match.skip_tokens;
  counts_.lookup_tokens += sequence.known();
  counts_.hit_tokens += match.skip_tokens;
  return true;
}

bool SlotsCache::reserve(const Row& row) {
  return grow_kv(blocks_, row.start + row.scheduled, options_.block_size, request(*row.sequence).blocks,
                 row.sequence->kv);
}

void SlotsCache::before_forward(std::span<const Row> rows) {
  blocks_.advance_tick();
  restore(rows);
  plan_checkpoints(rows);
}

/// The live states that rows begin with: copied from their checkpoints, or cleared.
void SlotsCache::restore(std::span<const Row> rows) {
  std::vector<SlotCopy> copies;
  std::vector<SlotId> cleared;
  for (const Row& row : rows) {
    Request& r = request(*row.sequence);
    if (r.restored) continue;
    r.restored = true;
    if (!r.pinned.valid()) {
      cleared.push_back(live(*row.sequence));
      continue;
    }
    copies.push_back(r.restore.copy);
    allocator_.unpin(r.pinned);
    r.pinned = {};
  }
  counts_.copies += states_.copy(copies);
  states_.clear(cleared);
}

void SlotsCache::plan_checkpoints(std::span<const Row> rows) {
  planned_.assign(rows.size(), {});
  first_scratch_.assign(rows.size(), 0);
  std::int32_t prefill_row = 0;
  std::int32_t scratch = 0;
  for (const Row& row : rows) {
    if (!row.prefilling()) continue;
    Request& r = request(*row.sequence);
    const std::int64_t end = row.start + row.scheduled;
    const auto i = static_cast<std::size_t>(row.index);
    planned_[i] = planner_.plan(
        {.row = prefill_row++,
         .live_slot = live(*row.sequence),
         .prompt_tokens = row.sequence->prefill,
         .finished_tokens = row.start - r.skip,
         .skip_tokens = r.skip,
         .chunk_tokens = row.scheduled + r.skip,
         .matched_blocks = r.matched_blocks,
         .required_blocks = static_cast<std::int32_t>((end + options_.block_size - 1) / options_.block_size),
         .blocks = r.blocks,
         .prefixes = r.hashes.prefixes});
    r.skip = 0;
    first_scratch_[i] = scratch;
    scratch += planned_[i].count;
  }
}

void SlotsCache::wrote_state(const Row& row, std::int64_t done, const ModelState& state) {
  states_.wrote_state(row, done, live(*row.sequence), state);
  const auto row_index = static_cast<std::size_t>(row.index);
  const PlannedCheckpoints& planned = planned_[row_index];
  for (std::int32_t i = 0; i < planned.count; ++i)
    if (planned.offsets[static_cast<std::size_t>(i)] == done)
      scratch_io_.write(SlotId{first_scratch_[row_index] + i}, state);
}

void SlotsCache::after_forward(std::span<const Row> rows) {
  for (const Row& row : rows) {
    states_.accept(row, live(*row.sequence));
    register_blocks(*row.sequence);
  }
  states_.commit();
  const CheckpointCommit commit = planner_.commit();
  committer_.commit_scratch(states_.stream(), commit.from_scratch, commit.from_live);
  counts_.copies += std::ssize(commit.from_scratch) + std::ssize(commit.from_live);
  planner_.publish();
  for (const Row& row : rows)
    if (!row.prefilling() && row.sequence->computed % options_.block_size == 0) checkpoint_live(*row.sequence);
}

/// Blocks that are full now can be found by others.
void SlotsCache::register_blocks(const Sequence& sequence) {
  Request& r = request(sequence);
  const auto full = static_cast<std::size_t>(sequence.computed / options_.block_size);
  if (full <= r.registered) return;
  hasher_.hash_prompt(sequence.tokens, {}, r.hashes);
  register_chain(blocks_, r.blocks, r.hashes.keys, r.registered, full);
  r.registered = full;
}

/// A checkpoint of a step that ended on a block boundary, if a slot can be had.
void SlotsCache::checkpoint_live(const Sequence& sequence) {
  Request& r = request(sequence);
  const auto index = static_cast<std::size_t>(sequence.computed / options_.block_size) - 1;
  const BlockId block = r.blocks[index];
  SlotId slot;
  if (!allocator_.try_allocate({&block, 1}, {&slot, 1}).met()) return;
  const StateTag tag{.token_count = sequence.computed,
                     .prefix = r.hashes.prefixes[index],
                     .layout_fingerprint = states_.store().fingerprint()};
  if (allocator_.tag(block) == tag) return;
  const SlotCopy copy = allocator_.store_from(block, live(sequence));
  counts_.copies += states_.copy({&copy, 1});
  allocator_.set_tag(block, tag);
  allocator_.register_hashes({&block, 1}, {&r.hashes.keys[index], 1});
}

void SlotsCache::stop(Sequence& sequence, bool) {
  Request& r = request(sequence);
  if (r.pinned.valid()) allocator_.unpin(r.pinned);
  blocks_.release(r.blocks);
  r = {};
}

void SlotsCache::reset() {
  allocator_.reset();
  blocks_.reset();
}

std::size_t SlotsCache::kv_indices() const {
  return static_cast<std::size_t>(blocks_.block_count() * options_.block_size);
}

CacheCounts SlotsCache::counts() const {
  CacheCounts counts = counts_;
  counts.evictions = allocator_.evictions();
  return counts;
}

void SlotsCache::check_invariants() const {
  blocks_.check_invariants();
  slots_.check_invariants();
  allocator_.check_invariants();
  planner_.check_invariants();
}

}  // namespace stateport::engine
