// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/cache_options.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <numeric>
#include <variant>

namespace stateport {

namespace {

/// States that one pass of a request can save on its way, at most, as far as its checkpoints are placed or named.
std::int64_t placed_max(const RequestCacheOptions& options) noexcept {
  const SlotLayout& layout = slot_layout(options);
  const std::int64_t spare = layout.spare_checkpoint_tokens;
  const std::int64_t further =
      (spare > 0 ? options.max_request_tokens / spare : 0) + std::int64_t{layout.breakpoint_saves};
  switch (layout.placement) {
    case CheckpointPlacement::last:
      return 1 + further;
    case CheckpointPlacement::branch:
      return 2 + further;
    case CheckpointPlacement::rungs:
      return 5 + further;
    case CheckpointPlacement::every:
      return options.max_request_tokens / std::max(options.block_size_tokens, 1);
    case CheckpointPlacement::passes:
      break;
  }
  return detail::pass_saves_max + layout.breakpoint_saves;
}

}  // namespace

const SlotLayout& slot_layout(const RequestCacheOptions& options) noexcept {
  static constexpr SlotLayout none;
  const auto* const layout = std::get_if<SlotLayout>(&options.layout);
  return layout == nullptr ? none : *layout;
}

const ColumnLayout& column_layout(const RequestCacheOptions& options) noexcept {
  static const ColumnLayout none;
  const auto* const layout = std::get_if<ColumnLayout>(&options.layout);
  return layout == nullptr ? none : *layout;
}

std::size_t group_count(const RequestCacheOptions& options) noexcept {
  return in_columns(options) ? column_layout(options).groups.size() : 1;
}

std::int32_t state_slots(const RequestCacheOptions& options, std::size_t group) {
  detail::require_sizes(options);
  require(group < group_count(options), "group", group, "is out of range");
  if (in_columns(options)) return column_layout(options).groups[group].blocks + detail::reserved_state_blocks;
  const SlotLayout& layout = slot_layout(options);
  return options.max_requests + (layout.separate_checkpoints ? 0 : layout.checkpoints);
}

std::int32_t checkpoint_slots(const RequestCacheOptions& options, std::size_t group) {
  const std::int32_t slots = state_slots(options, group);
  const SlotLayout& layout = slot_layout(options);
  return layout.separate_checkpoints ? layout.checkpoints : slots;
}

std::int32_t scratch_slots(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  const bool in_place = options.index == CacheIndex::tree && !slot_layout(options).separate_checkpoints;
  if (in_columns(options) || in_place) return 0;
  const std::int64_t slots = options.max_requests * placed_max(options);
  require(slots < INT32_MAX, "max_requests", options.max_requests,
          "needs more scratch states than can be numbered, with this placement");
  return static_cast<std::int32_t>(slots);
}

std::size_t saves_max(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  if (const auto* const layout = std::get_if<ColumnLayout>(&options.layout)) {  // each save has a block to itself
    const auto add = [](std::size_t sum, const StateGroup& group) {
      return sum + static_cast<std::size_t>(group.blocks);
    };
    return std::accumulate(layout->groups.begin(), layout->groups.end(), std::size_t{0}, add);
  }
  std::int64_t saves = options.max_requests * placed_max(options);
  // Each save of a tree has a slot to itself. With the index hash two requests may save at the end of one block.
  if (options.index == CacheIndex::tree) saves = std::min<std::int64_t>(saves, slot_layout(options).checkpoints);
  return static_cast<std::size_t>(saves);
}

std::int32_t kv_blocks(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  constexpr std::int32_t reserved = 1;
  return static_cast<std::int32_t>(options.kv_tokens / options.block_size_tokens) + reserved;
}

}  // namespace stateport
