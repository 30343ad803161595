// SPDX-License-Identifier: Apache-2.0
#include "caches/checkpoint_mode.hpp"

#include <algorithm>

namespace stateport::replay {

std::string_view name(CheckpointMode mode) noexcept {
  switch (mode) {
    case CheckpointMode::every:
      return "every";
    case CheckpointMode::last:
      return "last";
    case CheckpointMode::branch:
      return "branch";
    case CheckpointMode::rungs:
      return "rungs";
  }
  return "?";
}

void choose_depths(CheckpointMode mode, std::int32_t hit_blocks, std::int32_t matched_blocks, std::int32_t full_blocks,
                   std::vector<std::int32_t>& depths) {
  depths.clear();
  if (mode == CheckpointMode::every)
    for (std::int32_t depth = hit_blocks + 1; depth < full_blocks; ++depth) depths.push_back(depth);
  const bool branch = mode == CheckpointMode::branch || mode == CheckpointMode::rungs;
  if (branch && matched_blocks > hit_blocks && matched_blocks < full_blocks) depths.push_back(matched_blocks);
  if (mode == CheckpointMode::rungs)
    for (const std::int32_t before_end : {4, 2, 1})
      if (full_blocks - before_end > matched_blocks) depths.push_back(full_blocks - before_end);
  if (full_blocks > hit_blocks) depths.push_back(full_blocks);
}

std::int64_t states_max(CheckpointMode mode, std::int64_t requests, std::int64_t distinct_blocks) noexcept {
  switch (mode) {
    case CheckpointMode::last:
      return std::min(distinct_blocks, requests);
    case CheckpointMode::branch:
      return std::min(distinct_blocks, 2 * requests);
    case CheckpointMode::rungs:
      return std::min(distinct_blocks, 5 * requests);
    case CheckpointMode::every:
      break;
  }
  return distinct_blocks;
}

}  // namespace stateport::replay
