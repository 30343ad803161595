// SPDX-License-Identifier: Apache-2.0
// The memory that KV and states of a request cache share.
#include <stateport/c/cache_arena.h>

#include <stateport/core/align/align_rules.hpp>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "memory_moves.hpp"

using namespace stateport;
using namespace stateport::c;

namespace stateport::c {

ArenaOptions read_arena(const stateport_arena* arena) {
  const auto given = read_optional_struct(arena, "arena");
  ArenaOptions wanted{.bytes = given.bytes};
  wanted.kv.bytes = given.kv_extent_bytes;
  wanted.states.bytes = given.states_extent_bytes;
  if (given.kv_extent_count != 0) wanted.kv.count = given.kv_extent_count;
  if (given.states_extent_count != 0) wanted.states.count = given.states_extent_count;
  if (given.state_share != 0) wanted.state_share = given.state_share == STATEPORT_NONE ? 0 : given.state_share;
  return wanted;
}

MemoryPlanArrays::MemoryPlanArrays(const RequestCacheOptions& options) {
  const ArenaOptions& arena = slot_layout(options).arena;
  if (arena.bytes == 0) return;
  const auto extents = [](std::int32_t numbers, const ExtentShape& shape) {
    return static_cast<std::size_t>(ceil_div(numbers, std::int64_t{shape.count}));
  };
  moves_.reserve(extents(kv_blocks(options), arena.kv) + extents(checkpoint_slots(options), arena.states));
  kv_copies_.reserve(static_cast<std::size_t>(kv_blocks(options)));
}

void MemoryPlanArrays::set(const MemoryPlan& plan) {
  to_c(plan.kv_copies, kv_copies_);
  moves_.clear();
  for (const MemoryMove& move : plan.moves)
    moves_.push_back({.id = move.id,
                      .kind = static_cast<std::int32_t>(move.kind),
                      .part = static_cast<std::int32_t>(move.part),
                      .extent = move.extent,
                      .reserved = 0});
}

}  // namespace stateport::c

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_take_memory(stateport_request_cache* cache, stateport_memory_plan* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    CacheArena& arena = held->arena();
    const Out result(out, "out");
    held->commit_memory.set(arena.take());
    stateport_memory_plan reported = {};
    held->commit_memory.point(reported);
    result.write(reported);
  });
}

stateport_status stateport_request_cache_settle_move(stateport_request_cache* cache, uint64_t move, int32_t done) {
  return guarded([&] { HeldCache(cache, "cache")->arena().settle(move, done != 0); });
}

stateport_status stateport_request_cache_is_mapped(stateport_request_cache* cache, int32_t part, int32_t extent,
                                                   uint8_t* mapped) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const CacheArena& arena = held->arena();
    std::uint8_t& reported = checked(mapped, "mapped");
    reported = arena.is_mapped(enumerator(part, MemoryPart::states, "part"), extent) ? 1 : 0;
  });
}

stateport_status stateport_request_cache_arena_usage(stateport_request_cache* cache, stateport_arena_usage* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const CacheArena* const arena = held->cache->arena();
    const ArenaUsage usage = arena == nullptr ? ArenaUsage{} : arena->usage();
    result.write({.kv_bytes = usage.kv_bytes,
                  .state_bytes = usage.state_bytes,
                  .moves = usage.moves,
                  .refused_moves = usage.refused_moves});
  });
}
