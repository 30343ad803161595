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

void choose_depths(CheckpointPlacement placement, const PromptDepths& prompt, std::vector<std::int32_t>& depths) {
  const auto [hit, matched, usable, full] = prompt;
  const std::int32_t end = placement == CheckpointPlacement::every || usable == 0 ? full : usable;
  depths.clear();
  if (placement == CheckpointPlacement::every)
    for (std::int32_t depth = hit + 1; depth < end; ++depth) depths.push_back(depth);
  const bool branch = placement == CheckpointPlacement::branch || placement == CheckpointPlacement::rungs;
  if (branch && matched > hit && matched < end) depths.push_back(matched);
  if (placement == CheckpointPlacement::rungs)
    for (const std::int32_t before_end : {4, 2, 1})
      if (end - before_end > matched) depths.push_back(end - before_end);
  if (end > hit) depths.push_back(end);
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
