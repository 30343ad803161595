// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/slots/checkpoint_budget.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <numeric>

namespace stateport {

namespace {

/// States that one pass of a request can save on its way, at most, as far as its checkpoints are placed.
std::int64_t placed_max(const RequestCacheOptions& options) noexcept {
  const std::int64_t spare = options.spare_checkpoint_tokens;
  const std::int64_t spares = spare > 0 ? options.max_request_tokens / spare : 0;
  switch (options.placement) {
    case CheckpointPlacement::last:
      return 1 + spares;
    case CheckpointPlacement::branch:
      return 2 + spares;
    case CheckpointPlacement::rungs:
      return 5 + spares;
    case CheckpointPlacement::every:
      return options.max_request_tokens / std::max(options.block_size_tokens, 1);
    case CheckpointPlacement::passes:
      break;
  }
  return max_checkpoints_per_chunk;
}

}  // namespace

std::size_t group_count(const RequestCacheOptions& options) noexcept {
  return in_columns(options.index) ? options.groups.size() : 1;
}

std::int32_t state_slots(const RequestCacheOptions& options, std::size_t group) {
  detail::require_sizes(options);
  require(group < group_count(options), "group", group, "is out of range");
  if (in_columns(options.index)) return options.groups[group].blocks + detail::reserved_state_blocks;
  return options.max_requests + (options.separate_checkpoints ? 0 : options.checkpoints);
}

std::int32_t checkpoint_slots(const RequestCacheOptions& options, std::size_t group) {
  const std::int32_t slots = state_slots(options, group);
  return options.separate_checkpoints ? options.checkpoints : slots;
}

std::int32_t scratch_slots(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  const bool in_scratch = options.index == CacheIndex::slots || options.separate_checkpoints;
  if (!in_scratch) return 0;
  const std::int64_t slots = options.max_requests * placed_max(options);
  require(slots < INT32_MAX, "max_requests", options.max_requests,
          "needs more scratch states than can be numbered, with this placement");
  return static_cast<std::int32_t>(slots);
}

std::size_t saves_max(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  // Each save in columns has a block of states to itself, each of a tree a slot for a checkpoint. With slots two
  // requests may save at the end of one block.
  std::int64_t saves = options.max_requests * placed_max(options);
  if (options.index == CacheIndex::tree) saves = std::min<std::int64_t>(saves, options.checkpoints);
  if (in_columns(options.index))
    saves = std::accumulate(options.groups.begin(), options.groups.end(), std::int64_t{0},
                            [](std::int64_t sum, const StateGroup& group) { return sum + group.blocks; });
  return static_cast<std::size_t>(saves);
}

std::int32_t kv_blocks(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  constexpr std::int32_t reserved = 1;
  return static_cast<std::int32_t>(options.kv_tokens / options.block_size_tokens) + reserved;
}

}  // namespace stateport
