// SPDX-License-Identifier: Apache-2.0
#include "serve/arena_sizes.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {
namespace {

std::int64_t extents_of(std::int64_t numbers, const ExtentShape& shape) {
  return ceil_div(numbers, std::int64_t{shape.count});
}

/// The numbers may lie in one more extent than they would fill.
std::int64_t least_of(std::int64_t numbers, std::int64_t all, const ExtentShape& shape) {
  return std::min(extents_of(numbers, shape) + (shape.count > 1 ? 1 : 0), extents_of(all, shape));
}

/// `numbers`: of all extents. So that the bytes of numbers, each times those of an extent, fit into 64 bits in any sum.
void require_shape(const ExtentShape& shape, std::int64_t numbers, const char* count, const char* bytes) {
  constexpr std::int64_t sum_max = INT64_MAX / 16;
  require(shape.count >= 1, count, shape.count, "must be at least 1");
  require(shape.bytes >= shape.count && shape.bytes <= sum_max / std::max(numbers, std::int64_t{1}), bytes, shape.bytes,
          "must be the bytes of an extent, at least one for each number");
}

}  // namespace

std::int64_t arena_headroom_bytes(const RequestCacheOptions& options) noexcept {
  const ArenaOptions& arena = slot_layout(options).arena;
  constexpr std::int64_t part_of_arena = 96;  // measured: docs/eviction-experiments.md
  return std::max(arena.bytes / part_of_arena, 2 * (arena.kv.bytes + arena.states.bytes));
}

ArenaExtents arena_least_extents(const RequestCacheOptions& options) {
  const SlotLayout& layout = slot_layout(options);
  const std::int64_t kv = ceil_div(options.max_request_tokens, std::int64_t{options.block_size_tokens}) + 1;
  const std::int64_t states = (layout.separate_checkpoints ? 0 : options.max_requests) + 1;
  return {.kv = least_of(kv, kv_blocks(options), layout.arena.kv),
          .states = least_of(states, checkpoint_slots(options), layout.arena.states)};
}

ArenaExtents arena_extents_at_start(const RequestCacheOptions& options) {
  const ArenaOptions& arena = slot_layout(options).arena;
  const ArenaExtents least = arena_least_extents(options);
  const ArenaExtents most{.kv = extents_of(kv_blocks(options), arena.kv),
                          .states = extents_of(checkpoint_slots(options), arena.states)};
  const auto share = static_cast<std::int64_t>(arena.state_share * static_cast<double>(arena.bytes));
  ArenaExtents result;
  result.states = std::clamp(share / arena.states.bytes, least.states, most.states);
  result.kv = std::clamp((arena.bytes - result.states * arena.states.bytes) / arena.kv.bytes, least.kv, most.kv);
  result.states = std::min((arena.bytes - result.kv * arena.kv.bytes) / arena.states.bytes, most.states);
  return result;
}

bool arena_holds(const RequestCacheOptions& options, std::int64_t kv_tokens, std::int64_t states) noexcept {
  const ArenaOptions& arena = slot_layout(options).arena;
  const std::int64_t kv_bytes = kv_tokens / options.block_size_tokens * arena.kv.bytes / arena.kv.count;
  const std::int64_t state_bytes = states * arena.states.bytes / arena.states.count;
  return kv_bytes + state_bytes + arena_headroom_bytes(options) <= arena.bytes;
}

void require_arena(const RequestCacheOptions& options) {
  const SlotLayout& layout = slot_layout(options);
  const ArenaOptions& arena = layout.arena;
  require(arena.bytes >= 0 && arena.bytes <= INT64_MAX / 4, "arena.bytes", arena.bytes, "must be a number of bytes");
  if (arena.bytes == 0) return;
  require(layout.budget_bytes == 0, "budget_bytes", layout.budget_bytes,
          "must be 0 with an arena, which is the budget");
  require_shape(arena.kv, kv_blocks(options), "arena.kv.count", "arena.kv.bytes");
  require_shape(arena.states, checkpoint_slots(options), "arena.states.count", "arena.states.bytes");
  require(arena.state_share >= 0 && arena.state_share <= 1, "arena.state_share", arena.state_share,
          "must be from 0 to 1");
  const ArenaExtents least = arena_least_extents(options);
  require(arena.kv.bytes <= arena.bytes && arena.states.bytes <= arena.bytes, "arena.bytes", arena.bytes,
          "must hold an extent of each part");
  const auto most = INT64_MAX / 4;
  require(
      least.kv <= most / arena.kv.bytes && least.states <= most / arena.states.bytes &&
          least.kv * arena.kv.bytes + least.states * arena.states.bytes + arena_headroom_bytes(options) <= arena.bytes,
      "arena.bytes", arena.bytes, "must hold KV of one request, a state of each request, and the headroom");
}

}  // namespace stateport::detail
