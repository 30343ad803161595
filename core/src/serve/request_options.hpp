// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/serve/cache_options.hpp>

#include <cstdint>
#include <vector>

namespace stateport::detail {

/// Of each group of a layout in columns: the null block, and the last one, which is never handed out.
inline constexpr std::int32_t reserved_state_blocks = 2;

/// At most this many states that one pass over a prompt saves on its way, with CheckpointPlacement::passes: at the
/// branch point, at the last whole block, and at the start of the last block that the pass touches.
inline constexpr std::int32_t pass_saves_max = 3;

/// States lie at multiples of this number of tokens: whole blocks, in columns those of the last group.
[[nodiscard]] inline std::int64_t state_grid_tokens(const RequestCacheOptions& options) noexcept {
  const std::vector<StateGroup>& groups = column_layout(options).groups;
  return groups.empty() ? options.block_size_tokens : groups.back().block_size_tokens;
}

/// Rows of an index: of requests, then of pins and prefetches (HeldPrefixes).
[[nodiscard]] inline std::size_t index_rows(const RequestCacheOptions& options) noexcept {
  return static_cast<std::size_t>(options.max_requests) + static_cast<std::size_t>(options.prefixes.pins) +
         static_cast<std::size_t>(options.prefixes.prefetches);
}

/// The number of blocks that one request of max_request_tokens needs in this group.
[[nodiscard]] inline std::int64_t request_state_blocks(const RequestCacheOptions& options, const StateGroup& group) {
  return resident_blocks(column_layout(options).mode, options.max_request_tokens, group.block_size_tokens,
                         options.drafts, 0) +
         (options.overlap ? 1 : 0) + (options.index == CacheIndex::tree ? 1 : 0);
}

/// Throws InvalidArgument for sizes, and for combinations of options, that no RequestCache can have. Does not look at
/// fingerprints of layouts: an engine asks for sizes before it makes its stores.
void require_sizes(const RequestCacheOptions& options);

}  // namespace stateport::detail
