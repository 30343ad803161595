// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace stateport {

/// At most this many intermediate checkpoints per request and prefill chunk: the branch point, the last aligned
/// boundary, and the start of the last block.
inline constexpr std::int32_t max_checkpoints_per_chunk = 3;

/// Scratch slots that one step can need: min(ceil(max_tokens / block_size), 3 · max_requests). Throws InvalidArgument
/// unless all are positive.
[[nodiscard]] std::int32_t scratch_slots_bound(std::int64_t max_tokens, std::int32_t block_size_tokens,
                                               std::int32_t max_requests);

/// Cache slots that a budget holds beside the scratch slots: (budget - scratch · slot) / slot, all in bytes. Throws
/// OutOfMemory with the bytes needed if that is not even one, InvalidArgument for slot_bytes 0 or scratch_slots < 0.
[[nodiscard]] std::int64_t slots_for_budget(std::size_t budget_bytes, std::size_t slot_bytes,
                                            std::int32_t scratch_slots);

}  // namespace stateport
