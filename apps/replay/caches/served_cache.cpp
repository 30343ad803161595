// SPDX-License-Identifier: Apache-2.0
#include "caches/served_cache.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>
#include <variant>

namespace stateport::replay {
namespace {

constexpr std::size_t events_at_once = 256;
/// In an arena prompts are computed in passes of this number of tokens of the model, as engines do.
constexpr std::int64_t arena_pass_tokens = 8192;
/// How often a pass without room is planned again: after memory was given back, and after it was mapped.
constexpr int arena_tries = 4;

/// The same cost, of tokens as the cache sees them.
ComputeCost cost_seen(const ComputeCost& cost, std::int64_t block_size_tokens) {
  const double tokens = static_cast<double>(block_size_tokens) / tokens_per_block;
  return {.linear = cost.linear * tokens, .quadratic = cost.quadratic * tokens * tokens};
}

void check(const ServedCacheOptions& options) {
  // Beside the cached blocks there is one for the end of the prompt, and KV ends with a block that no one uses.
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / tokens_per_block - 3;
  require(options.blocks >= 1 && options.blocks <= most, "blocks", options.blocks, "1 to 2^29 - 4");
  require(options.slots >= 1 && options.slots < std::numeric_limits<std::int32_t>::max(), "slots", options.slots,
          "1 to 2^31 - 2");
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "at least 1");
  require(options.longest_blocks >= 0, "longest_blocks", options.longest_blocks, "must not be negative");
  if (!options.budget) return;
  check_budget(*options.budget);
  require(options.budget->block_size_tokens == options.block_size_tokens, "budget.block_size_tokens",
          options.budget->block_size_tokens, "must be that of the cache");
}

/// A budget does not count the states of running requests, so that the arena has as much more.
void set_arena(const Budget& budget, const RequestCacheOptions& cache, SlotLayout& layout) {
  const std::int64_t blocks = (budget.arena_tokens + budget.block_size_tokens - 1) / budget.block_size_tokens;
  const std::int64_t running = layout.separate_checkpoints ? 0 : cache.max_requests;
  layout.arena = {.bytes = budget.bytes * tokens_per_block + running * cache.memory.state_bytes,
                  .kv = {.count = static_cast<std::int32_t>(blocks),
                         .bytes = blocks * tokens_per_block * cache.memory.kv_bytes_per_token},
                  .states = {.count = 1, .bytes = cache.memory.state_bytes}};
}

void set_walls(const Budget& budget, RequestCacheOptions& cache, SlotLayout& layout) {
  const auto state_bytes = static_cast<std::int64_t>(budget.state_share * static_cast<double>(budget.bytes));
  layout.checkpoints = static_cast<std::int32_t>(std::max<std::int64_t>(state_bytes / budget.state_bytes, 1));
  const std::int64_t blocks = (budget.bytes - state_bytes) / budget.block_bytes();
  const std::int64_t least = (cache.max_request_tokens + tokens_per_block - 1) / tokens_per_block;
  cache.kv_tokens = std::max(std::min(blocks, cache.kv_tokens / tokens_per_block), least) * tokens_per_block;
}

}  // namespace

/// Memory counts in quarters of the block size, so that a token that the cache sees costs a whole number.
RequestCacheOptions request_cache_options(const ServedCacheOptions& options) {
  check(options);
  SlotLayout layout{.layout_fingerprint = options.layout_fingerprint,
                    .checkpoints = static_cast<std::int32_t>(options.slots),
                    .separate_checkpoints = options.separate_checkpoints,
                    .placement = options.placement,
                    .tail_tokens = -1,  // prompts are whole blocks
                    .spare_checkpoint_tokens = options.spare_blocks * tokens_per_block};
  RequestCacheOptions cache{
      .index = options.index,
      .max_requests = 1,
      .max_request_tokens = std::min(options.blocks, options.longest_blocks) * tokens_per_block + 1,
      .block_size_tokens = tokens_per_block,
      .kv_tokens = (options.blocks + 1) * tokens_per_block,
      .unchecked_layout = options.layout_fingerprint == 0,
      .eviction = options.eviction,
      .eviction_options = options.eviction_options,
      .position_tokens = tokens_per_block,
      .hash = options.hash,
      .events = options.tells_stored};
  cache.eviction_options.benefit = cost_seen(options.eviction_options.benefit, options.block_size_tokens);
  constexpr std::int64_t half = std::numeric_limits<std::int64_t>::max() / 2;
  const MemoryCost memory =
      options.budget ? MemoryCost{options.budget->state_bytes, options.budget->kv_bytes_per_token} : options.memory;
  require(memory.state_bytes <= half / tokens_per_block, "state_bytes", memory.state_bytes, "is too large");
  require(memory.kv_bytes_per_token <= half / options.block_size_tokens, "kv_bytes_per_token",
          memory.kv_bytes_per_token, "is too large");
  cache.memory = {.state_bytes = memory.state_bytes * tokens_per_block,
                  .kv_bytes_per_token = memory.kv_bytes_per_token * options.block_size_tokens};
  if (options.budget && options.budget->arena_tokens > 0) set_arena(*options.budget, cache, layout);
  if (options.budget && options.budget->state_share > 0) set_walls(*options.budget, cache, layout);
  if (options.budget) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / tokens_per_block;
    if (options.budget->arena_tokens == 0 && options.budget->state_share == 0)
      layout.budget_bytes = std::min(options.budget->bytes, most) * tokens_per_block;
    cache.tiers.host_bytes = std::min(options.budget->host_bytes, most) * tokens_per_block;
    cache.tiers.file_bytes = std::min(options.budget->file_bytes, most) * tokens_per_block;
    cache.tiers.remote_bytes = std::min(options.budget->remote_bytes, most) * tokens_per_block;
    cache.tiers.write_through = options.budget->write_through;
    const TierSpeeds& speeds = options.budget->speeds;
    cache.tiers.host_bytes_per_s = speeds.host_bytes_per_s * tokens_per_block;
    cache.tiers.file_bytes_per_s = speeds.file_bytes_per_s * tokens_per_block;
    cache.tiers.remote_bytes_per_s = speeds.remote_bytes_per_s * tokens_per_block;
    cache.tiers.remote_latency_s = speeds.remote_latency_s;
    cache.tiers.tokens_per_s = speeds.tokens_per_s * tokens_per_block / static_cast<double>(options.block_size_tokens);
  }
  cache.tenant_quotas = options.budget ? options.budget->tenants.quotas() : 0;
  cache.layout = layout;
  return cache;
}

std::array<TierUsage, medium_count> tier_usages(RequestCache& cache, std::int64_t block_size_tokens) {
  std::array<TierUsage, medium_count> tiers = {};
  for (int medium = 0; medium < medium_count; ++medium) {
    if (cache.tiers() == nullptr) break;
    TierUsage& tier = tiers[static_cast<std::size_t>(medium)] = cache.tiers()->usage(static_cast<Medium>(medium));
    for (std::int64_t* bytes :
         {&tier.bytes, &tier.bytes_read, &tier.bytes_written, &tier.reads.bytes, &tier.writes.bytes})
      *bytes /= tokens_per_block;
    tier.hit_tokens = tier.hit_tokens / tokens_per_block * block_size_tokens;
  }
  return tiers;
}

std::array<std::int64_t, tenant_count> tenant_bytes(RequestCache& cache, std::int64_t scale) {
  std::array<std::int64_t, tenant_count> bytes = {};
  for (const Tenant tenant : tenants) {
    if (cache.tenants() == nullptr) break;
    const TenantUsage usage = cache.tenants()->usage(name_space_of(tenant).salt);
    bytes[static_cast<std::size_t>(tenant)] = (usage.kv_bytes + usage.state_bytes) / scale;
  }
  return bytes;
}

ServedCache::ServedCache(const ServedCacheOptions& options)
    : cache_(make_request_cache(request_cache_options(options))),
      events_(options.tells_stored ? events_at_once : 0),
      block_size_tokens_(options.block_size_tokens) {
  if (options.budget) set_quotas(*cache_, options.budget->tenants, tokens_per_block);
  if (options.index == CacheIndex::hash)
    hasher_.emplace(BlockHasherOptions{.kind = options.hash, .block_size_tokens = tokens_per_block});
}

StateRoom ServedCache::room() const {
  return room_for(cache_->options());
}

std::chrono::steady_clock::duration ServedCache::prepare(const Request& request, const Sequence& names) {
  wanted_ = request;
  tokens_.clear();
  for (std::int64_t at = 0; at < names.tokens(); ++at) tokens_.push_back(names.token(at));
  stored_.clear();
  if (!hasher_) return {};
  const auto begin = std::chrono::steady_clock::now();
  hasher_->hash_prompt(tokens_, {}, hashes_);
  return std::chrono::steady_clock::now() - begin;
}

Hit ServedCache::begin() {
  request_ = {};
  if (std::ssize(tokens_) > cache_->options().max_request_tokens) return {};
  const auto started = cache_->start({.tokens = tokens_,
                                      .name_space = name_space_of(wanted_.tenant),
                                      .hint = wanted_.hint,
                                      .now_s = wanted_.arrival_s()});
  require_invariant(started.has_value(), "ServedCache", "a request finds no room though no other runs");
  request_ = started->request;
  move_between_tiers(started->transfers);
  reused_tokens_ = cache_->computed(request_);
  const std::int64_t matched = std::max(reused_tokens_, started->reused_tokens + started->lost_tokens);
  return {.matched_blocks = static_cast<std::int32_t>(matched / tokens_per_block),
          .hit_blocks = static_cast<std::int32_t>(reused_tokens_ / tokens_per_block),
          .lost = started->lost_tokens > 0 ? started->lost : std::nullopt};
}

PassPlan ServedCache::plan() {
  if (!request_.valid()) {
    uncached_blocks_ += std::ssize(tokens_) / tokens_per_block;
    return {};
  }
  std::int64_t left = std::ssize(tokens_) - reused_tokens_;
  const std::int64_t most = std::max<std::int64_t>(arena_pass_tokens / block_size_tokens_, 1) * tokens_per_block;
  for (; cache_->arena() != nullptr && left > most; left -= most) {
    static_cast<void>(plan_part(most));
    static_cast<void>(commit_part());
    if (cache_->tiers() != nullptr) move_between_tiers(cache_->tiers()->settle(moved_).transfers);
  }
  return plan_part(left);
}

PassPlan ServedCache::plan_part(std::int64_t tokens) {
  const PassRow row{.request = request_, .tokens = static_cast<std::int32_t>(tokens)};
  PassPlan plan = cache_->plan({&row, 1});
  for (int tries = 0; plan.rows_without_room > 0 && tries < arena_tries; ++tries) {
    move_between_tiers(plan.transfers);
    move_memory(plan.memory);
    cache_->cancel(plan.pass);
    plan = cache_->plan({&row, 1});
  }
  require_invariant(plan.rows_without_room == 0, "ServedCache", "a prompt finds no room though no other runs");
  pass_ = plan.pass;
  move_between_tiers(plan.transfers);
  move_memory(plan.memory);
  return plan;
}

PassCommit ServedCache::commit() {
  return commit_part();
}

PassCommit ServedCache::commit_part() {
  constexpr std::int32_t sampled = 0;
  const PassCommit commit = cache_->commit(pass_, {&sampled, 1}, {});
  dropped_checkpoints_ += commit.dropped_states;
  moved_.clear();
  mover_->transfer(commit.transfers, moved_);  // settled once the copies of the commit are enqueued
  move_memory(commit.memory);
  return commit;
}

/// Carries moves out at once, and those that they make possible.
void ServedCache::move_memory(MemoryPlan plan) {
  if (cache_->arena() == nullptr) return;
  const ArenaOptions& arena = std::get<SlotLayout>(cache_->options().layout).arena;
  copied_kv_blocks_ += std::ssize(plan.kv_copies);
  for (; !plan.moves.empty(); plan = cache_->arena()->take())
    for (const MemoryMove& move : plan.moves) {
      cache_->arena()->settle(move.id, true);
      if (move.kind == MemoryMove::Kind::map)
        mapped_bytes_ += move.part == MemoryPart::kv ? arena.kv.bytes : arena.states.bytes;
    }
  const ArenaUsage usage = cache_->arena()->usage();
  require_invariant(usage.kv_bytes + usage.state_bytes <= arena.bytes, "ServedCache",
                    "more memory is mapped than the arena has");
}

void ServedCache::finish() {
  if (!request_.valid()) return;
  CacheTiers* const tiers = cache_->tiers();
  if (tiers != nullptr) {
    const TransferPlan next = tiers->settle(moved_).transfers;
    moved_.clear();
    mover_->transfer(next, moved_);
  }
  const EndedRequest ended = cache_->finish(request_, wanted_.hint);
  mover_->transfer(ended.transfers, moved_);
  mover_->after_end(ended.copies);
  if (tiers != nullptr) {
    mover_->transfer(tiers->settle({}).transfers, moved_);
    move_between_tiers(tiers->settle(moved_).transfers);
  }
  if (!events_.empty()) take_events();
}

/// Carries the transfers out at once, and those that follow from their ends.
void ServedCache::move_between_tiers(TransferPlan transfers) {
  while (!transfers.empty()) {
    moved_.clear();
    mover_->transfer(transfers, moved_);
    transfers = cache_->tiers()->settle(moved_).transfers;
  }
}

void ServedCache::take_events() {
  for (std::size_t taken = events_.size(); taken == events_.size();) {
    taken = cache_->take_events(events_);
    for (const CacheEvent& event : std::span(events_).first(taken))
      if (event.kind == CacheEvent::Kind::stored && event.content == CacheContent::state &&
          event.medium == Medium::device)
        stored_.push_back(static_cast<std::int32_t>(event.tokens / tokens_per_block));
  }
  std::ranges::sort(stored_);
}

CacheCounts ServedCache::counts() const {
  const auto& layout = std::get<SlotLayout>(cache_->options().layout);
  const CacheUsage usage = cache_->usage();
  const std::int64_t moves = cache_->arena() == nullptr ? 0 : cache_->arena()->usage().moves;
  return {.state_evictions = usage.evicted_states,
          .block_evictions = usage.evicted_kv_tokens / tokens_per_block,
          .dropped_checkpoints = dropped_checkpoints_,
          .uncached_blocks = uncached_blocks_,
          .resident_blocks = usage.kv_tokens / tokens_per_block,
          .resident_states = usage.states,
          .victims = layout.budget_bytes > 0 || layout.arena.bytes > 0 ? usage.evicted_states : 0,
          .memory_moves = moves,
          .memory_mapped_bytes = mapped_bytes_ / tokens_per_block,
          .memory_copied_bytes = copied_kv_blocks_ * cache_->options().memory.kv_bytes_per_token,
          .tenant_bytes = tenant_bytes(*cache_, tokens_per_block),
          .tiers = tier_usages(*cache_, block_size_tokens_),
          .metadata_bytes = static_cast<std::int64_t>(usage.metadata_bytes)};
}

}  // namespace stateport::replay
