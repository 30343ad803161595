// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/checkpoint_budget.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>

namespace stateport {

std::int32_t scratch_slots_bound(std::int64_t max_tokens, std::int32_t block_size_tokens, std::int32_t max_requests) {
  require(max_tokens >= 1, "max_tokens", max_tokens, "must be at least 1");
  require(block_size_tokens >= 1, "block_size_tokens", block_size_tokens, "must be at least 1");
  require(max_requests >= 1, "max_requests", max_requests, "must be at least 1");
  const std::int64_t by_tokens = (max_tokens - 1) / block_size_tokens + 1;
  const std::int64_t by_requests = std::int64_t{max_checkpoints_per_chunk} * max_requests;
  const std::int64_t bound = std::min(by_tokens, by_requests);
  require(bound <= std::numeric_limits<std::int32_t>::max(), "max_tokens", max_tokens, "needs too many slots");
  return static_cast<std::int32_t>(bound);
}

std::int64_t slots_for_budget(std::size_t budget_bytes, std::size_t slot_bytes, std::int32_t scratch_slots) {
  require(slot_bytes >= 1, "slot_bytes", slot_bytes, "must be at least 1");
  require(scratch_slots >= 0, "scratch_slots", scratch_slots, "must not be negative");
  // Whole slots only, so that no product can overflow: floor((budget - scratch · slot) / slot).
  const std::size_t whole = budget_bytes / slot_bytes;
  const auto scratch = static_cast<std::size_t>(scratch_slots);
  if (whole <= scratch) {
    const std::size_t largest = std::numeric_limits<std::size_t>::max();
    throw OutOfMemory("state slot budget", scratch + 1 > largest / slot_bytes ? largest : (scratch + 1) * slot_bytes,
                      budget_bytes);
  }
  constexpr std::size_t most = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(whole - scratch, most));
}

}  // namespace stateport
