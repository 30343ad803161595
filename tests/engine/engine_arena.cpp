// SPDX-License-Identifier: Apache-2.0
#include "engine_arena.hpp"

#include <stateport/core/align/align_rules.hpp>

#include <algorithm>
#include <utility>

namespace stateport::engine {

ArenaOptions arena_options(const CacheOptions& options, const RequestCacheOptions& cache) {
  const std::int32_t kv_count = options.arena.kv_blocks;
  const std::int32_t state_count = options.arena.state_slots;
  ArenaOptions arena{
      .kv = {.count = kv_count, .bytes = kv_count * cache.block_size_tokens * cache.memory.kv_bytes_per_token},
      .states = {.count = state_count, .bytes = state_count * cache.memory.state_bytes}};
  // The least that a cache may have, with its headroom, and the given number of extents of states more.
  const std::int64_t least_kv = ceil_div(cache.max_request_tokens, std::int64_t{cache.block_size_tokens}) + 1;
  const std::int64_t kv_extents = ceil_div(least_kv, std::int64_t{kv_count}) + 3;
  const std::int64_t state_extents = ceil_div(std::int64_t{cache.max_requests} + 1, std::int64_t{state_count}) + 3;
  arena.bytes = kv_extents * arena.kv.bytes + (state_extents + options.arena.more) * arena.states.bytes;
  arena.bytes += arena.bytes / 32;
  return arena;
}

EngineArena::EngineArena(const CacheOptions& options, RequestCache& cache, KvStore& kv, StateStores& states)
    : options_(slot_layout(cache.options()).arena),
      block_size_(options.block_size),
      arena_(*cache.arena()),
      kv_(kv),
      states_(states),
      blocks_(kv.blocks(options.block_size)),
      copier_(blocks_),
      random_(options.arena.seed) {}

void EngineArena::take(const MemoryPlan& plan) {
  copier_.copy_slots(stream_, plan.kv_copies);
  stream_.synchronize();  // the model runs on the host
  copies_ += std::ssize(plan.kv_copies);
  moves_ += std::ssize(plan.moves);
  under_way_.insert(under_way_.end(), plan.moves.begin(), plan.moves.end());
}

void EngineArena::poll() {
  while (!under_way_.empty() && random_.chance(40)) {
    const auto at = under_way_.begin() + random_.between(0, std::ssize(under_way_) - 1);
    const MemoryMove move = *at;
    under_way_.erase(at);
    end(move);
  }
  if (random_.chance(50)) take(arena_.take());
}

bool EngineArena::settle_all() {
  const std::vector<MemoryMove> all = std::exchange(under_way_, {});
  for (const MemoryMove& move : all) end(move);
  take(arena_.take());
  return !all.empty();
}

void EngineArena::end(const MemoryMove& move) {
  if (move.kind == MemoryMove::Kind::unmap) {
    const bool is_kv = move.part == MemoryPart::kv;
    const std::int32_t count = is_kv ? options_.kv.count : options_.states.count;
    const std::int32_t first = move.extent * count;
    if (is_kv)  // the last extent may be cut
      kv_.forget(first * block_size_, std::min(count, blocks_.slots() - first) * block_size_);
    else
      states_.forget(first, count);
  }
  arena_.settle(move.id, true);
}

}  // namespace stateport::engine
