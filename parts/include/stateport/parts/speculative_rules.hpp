// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

/// Speculative commit with scratch states (after SGLang): verify keeps the persistent state and writes the state after
/// each draft step to scratch; commit picks steps. A negative step means skip. constexpr, usable on the device.
namespace stateport {

inline constexpr std::int32_t no_step = -1;

/// The scratch step that becomes the live state of request `row`: its last accepted token. accept_index
/// [draft_tokens] holds the request's accepted tokens as indices into the flattened draft trees of the batch, so that
/// the step is a tree index, not accepted - 1. no_step for accepted < 1 or > draft_tokens.
[[nodiscard]] constexpr std::int32_t last_accepted_step(const std::int32_t* accept_index, std::int32_t accepted,
                                                        std::int64_t row, std::int32_t draft_tokens) noexcept {
  if (accepted < 1 || accepted > draft_tokens || accept_index[accepted - 1] < 0) return no_step;
  return static_cast<std::int32_t>(accept_index[accepted - 1] - row * draft_tokens);
}

/// The scratch step at the last tracking boundary that the step crossed: the last multiple of interval_tokens in
/// (seq_len, seq_len + accepted]; no_step if there is none. Precondition: interval_tokens > 0.
[[nodiscard]] constexpr std::int32_t tracked_step(const std::int32_t* accept_index, std::int32_t accepted,
                                                  std::int64_t row, std::int32_t draft_tokens, std::int64_t seq_len,
                                                  std::int64_t interval_tokens) noexcept {
  const std::int64_t edge = floor_to(seq_len + accepted, interval_tokens);
  if (edge <= seq_len) return no_step;
  return last_accepted_step(accept_index, static_cast<std::int32_t>(edge - seq_len), row, draft_tokens);
}

/// A copy of commit_step or of a tracking copy: skipped for a negative step, and for a slot outside [0, slots).
[[nodiscard]] constexpr bool commits(std::int32_t step, std::int32_t slot, std::int32_t slots) noexcept {
  return step >= 0 && slot >= 0 && slot < slots;
}

/// Least common multiple, for a, b > 0.
[[nodiscard]] constexpr std::int64_t checkpoint_grid(std::int64_t page, std::int64_t chunk) noexcept {
  std::int64_t a = page;
  std::int64_t b = chunk;
  while (b != 0) {
    const std::int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return page / a * chunk;
}

/// Which state an extend stores as a checkpoint.
struct PrefillDepth {
  bool track = false;
  std::int64_t depth = -1;          ///< tokens of the checkpoint; -1: none
  std::int64_t kernel_tokens = -1;  ///< the sequence length that makes the kernel store state@depth; -1: none
  friend constexpr bool operator==(const PrefillDepth&, const PrefillDepth&) noexcept = default;
};

struct ExtendChunk {
  std::int64_t prefix = 0;
  std::int64_t extend = 0;
  std::int64_t chunk = 1;       ///< tokens per chunk of the scan kernel
  std::int64_t page = 1;        ///< tokens per page of the tree
  std::int64_t branching = -1;  ///< tokens where another sequence branched off; negative: nowhere
};

/// The deepest point on the grid of pages and chunks, replaced by the branching point if that lies in the extend on a
/// chunk boundary. A depth off the kernel's last chunk boundary is asked for with one token more.
/// Precondition: chunk > 0, page > 0.
[[nodiscard]] constexpr PrefillDepth prefill_checkpoint_depth(const ExtendChunk& e) noexcept {
  const std::int64_t grid = checkpoint_grid(e.page, e.chunk);
  if (e.extend < grid) return {};
  PrefillDepth result{true, e.prefix + floor_to(e.extend, grid), e.prefix + e.extend};
  if (result.depth != e.prefix + floor_to(e.extend, e.chunk)) result.kernel_tokens = result.depth + 1;
  if (e.prefix < e.branching && e.branching < result.kernel_tokens && (e.branching - e.prefix) % e.chunk == 0) {
    result.depth = e.branching;
    result.kernel_tokens = e.branching + 1;
  }
  return result;
}

}  // namespace stateport
