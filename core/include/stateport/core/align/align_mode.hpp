// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport {

/// Which states a block table keeps.
enum class AlignMode : std::uint8_t {
  none,   ///< only the running window: 1 + K columns
  align,  ///< the running window, and the state at every block boundary that a step ends on or crosses
  all,    ///< the scan kernel itself writes the state at every boundary
};

/// Columns of a request's row. Precondition: block > 0.
[[nodiscard]] constexpr std::int64_t table_columns(AlignMode mode, std::int64_t max_tokens, std::int64_t block,
                                                   std::int64_t drafts) noexcept {
  return mode == AlignMode::none ? 1 + drafts : ceil_div(max_tokens, block) + drafts;
}

/// Blocks that a request holds at most in synchronous runs (align: one more with asynchronous counters), with
/// `checkpoints` columns for checkpoints inside prefill chunks.
[[nodiscard]] constexpr std::int64_t resident_blocks(AlignMode mode, std::int64_t max_tokens, std::int64_t block,
                                                     std::int64_t drafts, std::int64_t checkpoints) noexcept {
  if (mode == AlignMode::align) return 2 + drafts + checkpoints;
  return table_columns(mode, max_tokens, block, drafts);
}

}  // namespace stateport
