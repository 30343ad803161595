// SPDX-License-Identifier: Apache-2.0
#include "caches/checkpoint_depths.hpp"

#include <algorithm>

namespace stateport::replay {

std::string_view name(CheckpointPlacement placement) noexcept {
  switch (placement) {
    case CheckpointPlacement::every:
      return "every";
    case CheckpointPlacement::last:
      return "last";
    case CheckpointPlacement::branch:
      return "branch";
    case CheckpointPlacement::rungs:
      return "rungs";
    case CheckpointPlacement::passes:
      return "passes";
  }
  return "?";
}

void choose_depths(CheckpointPlacement placement, std::int32_t hit_blocks, std::int32_t matched_blocks,
                   std::int32_t full_blocks, std::vector<std::int32_t>& depths) {
  depths.clear();
  if (placement == CheckpointPlacement::every)
    for (std::int32_t depth = hit_blocks + 1; depth < full_blocks; ++depth) depths.push_back(depth);
  const bool branch = placement == CheckpointPlacement::branch || placement == CheckpointPlacement::rungs;
  if (branch && matched_blocks > hit_blocks && matched_blocks < full_blocks) depths.push_back(matched_blocks);
  if (placement == CheckpointPlacement::rungs)
    for (const std::int32_t before_end : {4, 2, 1})
      if (full_blocks - before_end > matched_blocks) depths.push_back(full_blocks - before_end);
  if (full_blocks > hit_blocks) depths.push_back(full_blocks);
}

std::int64_t states_max(CheckpointPlacement placement, std::int64_t requests, std::int64_t distinct_blocks) noexcept {
  switch (placement) {
    case CheckpointPlacement::last:
      return std::min(distinct_blocks, requests);
    case CheckpointPlacement::branch:
      return std::min(distinct_blocks, 2 * requests);
    case CheckpointPlacement::rungs:
      return std::min(distinct_blocks, 5 * requests);
    case CheckpointPlacement::every:
    case CheckpointPlacement::passes:
      break;
  }
  return distinct_blocks;
}

}  // namespace stateport::replay
