// SPDX-License-Identifier: Apache-2.0
#include "caches/slots_cache.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>

namespace stateport::replay {
namespace {

/// An identity stands for all tokens of its block; the hasher sees it as two of them.
constexpr std::int32_t tokens_per_identity = 2;

std::int32_t checked_block_size(std::int64_t tokens) {
  require(tokens >= 1 && tokens <= std::numeric_limits<std::int32_t>::max(), "block_size_tokens", tokens,
          "1 to 2^31 - 1");
  return static_cast<std::int32_t>(tokens);
}

std::int32_t with_dummy(std::int32_t blocks) {
  require(blocks >= 1 && blocks < std::numeric_limits<std::int32_t>::max(), "blocks", blocks, "1 to 2^31 - 2");
  return blocks + 1;
}

}  // namespace

void SlotsCache::Losses::on_blocks_deregistered(std::span<const BlockId> lost, std::span<const BlockHash>) {
  blocks += static_cast<std::int64_t>(lost.size());
  for (const BlockId block : lost) {
    const SlotId slot = cache_.allocator_.slot_of(block);
    if (!slot.valid()) continue;
    ++states;
    cache_.eviction_ages_.add(cache_.now_s_ - cache_.used_s_[slot.index()]);
  }
}

SlotsCache::SlotsCache(const SlotsCacheOptions& options)
    : options_(options),
      hasher_({.kind = options.hash, .block_size_tokens = tokens_per_identity}),
      pool_({.blocks = with_dummy(options.blocks)}),
      losses_(*this, pool_),
      slots_(options.slots),
      allocator_(slots_, pool_,
                 {.eviction = options.eviction,
                  .on_victim =
                      [this](const SlotVictim& victim) {
                        last_victim_ = victim.block;
                        eviction_ages_.add(now_s_ - used_s_[victim.slot.index()]);
                      }}),
      matcher_(pool_, &allocator_,
               {.block_size_tokens = checked_block_size(options.block_size_tokens),
                .layout_fingerprint = options.layout_fingerprint}),
      used_s_(static_cast<std::size_t>(options.slots), 0) {
  require(options.slots >= 1, "slots", options.slots, "at least 1");
  if (!options.budget) return;
  check_budget(*options.budget);
  require(options.budget->block_size_tokens == options.block_size_tokens, "budget.block_size_tokens",
          options.budget->block_size_tokens, "must be that of the cache");
}

void SlotsCache::prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) {
  input_tokens_ = input_tokens;
  tokens_.clear();
  for (const BlockIdentity identity : identities) {
    tokens_.push_back(static_cast<std::int32_t>(identity & 0xffff'ffffU));
    tokens_.push_back(static_cast<std::int32_t>(identity >> 32));
  }
  hasher_.hash_prompt(tokens_, {}, hashes_);
}

Hit SlotsCache::begin() {
  pool_.advance_tick();
  blocks_.resize(full_blocks());
  const BlockMatch match =
      matcher_.match({.chunk_tokens = input_tokens_, .keys = hashes_.keys, .prefixes = hashes_.prefixes}, blocks_);
  remember_recency(match);
  take_blocks(static_cast<std::size_t>(match.matched_blocks));
  for (const Recency& kept : kept_recency_) pool_.set_last_use({&kept.block, 1}, kept.tick);
  Hit hit{.matched_blocks = match.matched_blocks, .lost = match.lost};
  if (match.state) {
    hit.hit_blocks = static_cast<std::int32_t>(match.skip_tokens / options_.block_size_tokens);
    hit.slot = match.state->slot;
    used_s_[hit.slot.index()] = now_s_;
  }
  hit_blocks_ = hit.hit_blocks;
  return hit;
}

/// Pinning makes every matched block the most recent, and its state with it. A state is only as recent as the request
/// that last used it, so the ones that this request passes over keep their place. So does the block where the prompt
/// merely continues a cached one: a state made there is superseded at once by the one at the end.
void SlotsCache::remember_recency(const BlockMatch& match) {
  kept_recency_.clear();
  const auto hit_blocks = static_cast<std::int32_t>(match.skip_tokens / options_.block_size_tokens);
  for (std::int32_t depth = 1; depth <= match.matched_blocks; ++depth) {
    const BlockId block = blocks_[static_cast<std::size_t>(depth - 1)];
    const bool continued = depth == match.matched_blocks && pool_.child_count(block) == 0;
    if (depth != hit_blocks && (continued || allocator_.has_state(block)))
      kept_recency_.push_back({block, pool_.last_use_tick(block)});
  }
}

/// Pins the matched blocks and finds room for the rest; what the whole pool cannot hold stays uncached.
void SlotsCache::take_blocks(std::size_t matched) {
  matched_ = matched;
  pool_.retain(std::span(blocks_).first(matched));
  const auto room = static_cast<std::size_t>(pool_.free_blocks() + pool_.cached_blocks());
  const std::size_t cached = std::min(full_blocks(), matched + room);
  uncached_blocks_ += static_cast<std::int64_t>(full_blocks() - cached);
  blocks_.resize(cached);
  const bool allocated = pool_.allocate(std::span(blocks_).subspan(matched));
  require_invariant(allocated, "SlotsCache", "the pool gave less than it said it has");
}

void SlotsCache::place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) {
  kept.clear();
  checkpoint_blocks_.clear();
  for (const std::int32_t depth : depths) {
    if (static_cast<std::size_t>(depth) > blocks_.size()) {
      ++dropped_checkpoints_;
    } else if (static_cast<std::size_t>(depth) > matched_ || !holds_state(depth)) {
      checkpoint_blocks_.push_back(blocks_[static_cast<std::size_t>(depth - 1)]);
      kept.push_back({.depth_blocks = depth});
    }
  }
  checkpoint_slots_.resize(kept.size());
  const SlotDemand demand = allocator_.try_allocate(checkpoint_blocks_, checkpoint_slots_);
  if (!demand.met()) {
    // The deepest states serve the requests that continue this one.
    const auto dropped = static_cast<std::ptrdiff_t>(demand.required - demand.available);
    dropped_checkpoints_ += dropped;
    kept.erase(kept.begin(), kept.begin() + dropped);
    checkpoint_blocks_.erase(checkpoint_blocks_.begin(), checkpoint_blocks_.begin() + dropped);
    checkpoint_slots_.resize(kept.size());
    allocator_.allocate(checkpoint_blocks_, checkpoint_slots_);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    kept[i].slot = checkpoint_slots_[i];
    used_s_[kept[i].slot.index()] = now_s_;
  }
  checkpoint_tags_.clear();
  checkpoint_keys_.clear();
  for (const Checkpoint& checkpoint : kept) {
    checkpoint_tags_.push_back(tag_at(checkpoint.depth_blocks));
    checkpoint_keys_.push_back(hashes_.keys[static_cast<std::size_t>(checkpoint.depth_blocks - 1)]);
    allocator_.prefetch(checkpoint_keys_.back());
  }
}

void SlotsCache::finish() {
  const std::size_t fresh = blocks_.size() - matched_;
  const std::span<const BlockHash> keys(hashes_.keys);
  parents_.clear();
  for (std::size_t i = matched_; i < blocks_.size(); ++i) parents_.push_back(i == 0 ? root_hash : keys[i - 1]);
  pool_.register_hashes(std::span(blocks_).subspan(matched_), keys.subspan(matched_, fresh), parents_);
  for (std::size_t i = 0; i < checkpoint_blocks_.size(); ++i)
    allocator_.set_tag(checkpoint_blocks_[i], checkpoint_tags_[i]);
  allocator_.register_hashes(checkpoint_blocks_, checkpoint_keys_);
  allocator_.note_served(hashes_.keys,
                         {.usable_blocks = static_cast<std::int32_t>((input_tokens_ - 1) / options_.block_size_tokens),
                          .matched_blocks = static_cast<std::int32_t>(matched_),
                          .hit_blocks = hit_blocks_,
                          .hint = hint_},
                         now_s_);
  if (options_.budget) order_uses();
  pool_.release(blocks_);
  if (options_.budget) enforce_budget();
}

/// Gives the states that this request used or made ticks of their own, so that their order never hangs on block ids.
void SlotsCache::order_uses() {
  const auto use = [this](BlockId block) {
    pool_.advance_tick();
    pool_.set_last_use({&block, 1}, pool_.tick());
  };
  for (std::size_t i = checkpoint_blocks_.size(); i > 0; --i) use(checkpoint_blocks_[i - 1]);
  if (hit_blocks_ > 0) use(blocks_[static_cast<std::size_t>(hit_blocks_ - 1)]);
}

void SlotsCache::enforce_budget() {
  const auto used = [this] {
    const CacheCounts now = counts();
    return options_.budget->used_bytes(now.resident_blocks, now.resident_states);
  };
  while (used() > options_.budget->bytes) {
    const std::int64_t evicted = allocator_.evict(1);
    require_invariant(evicted == 1, "SlotsCache", "KV is cached that belongs to no state");
    drop_useless(last_victim_);
  }
}

/// The block has lost its state: it goes, and those before it, up to one that a state or another prompt needs.
void SlotsCache::drop_useless(BlockId block) {
  while (block.valid() && pool_.child_count(block) == 0 && !allocator_.has_state(block)) {
    const BlockId before = pool_.parent(block);
    pool_.set_last_use({&block, 1}, 0);  // no block that a request used has this tick, so that this one goes first
    const bool gone = pool_.evict(1);
    require_invariant(gone && pool_.is_free(block), "SlotsCache", "another block went than the one that is not needed");
    block = before;
  }
}

StateTag SlotsCache::tag_at(std::int32_t depth_blocks) const {
  return {.token_count = depth_blocks * options_.block_size_tokens,
          .prefix = hashes_.prefixes[static_cast<std::size_t>(depth_blocks - 1)],
          .layout_fingerprint = options_.layout_fingerprint};
}

/// A state that this request could not use (it would have left no token to the forward) needs no second copy.
bool SlotsCache::holds_state(std::int32_t depth_blocks) const {
  const BlockId block = blocks_[static_cast<std::size_t>(depth_blocks - 1)];
  return allocator_.has_state(block) && allocator_.tag(block) == tag_at(depth_blocks);
}

CacheCounts SlotsCache::counts() const {
  return {.state_evictions = allocator_.evictions() + losses_.states,
          .block_evictions = losses_.blocks,
          .dropped_checkpoints = dropped_checkpoints_,
          .uncached_blocks = uncached_blocks_,
          .resident_blocks = options_.blocks - pool_.free_blocks(),
          .resident_states = options_.slots - slots_.free_slots(),
          .victims = options_.budget ? allocator_.evictions() : 0};
}

void SlotsCache::check_invariants() const {
  pool_.check_invariants();
  slots_.check_invariants();
  allocator_.check_invariants();
}

}  // namespace stateport::replay
