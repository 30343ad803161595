// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Throws InvalidArgument for sizes, and for combinations of options, that no RequestCache can have. Does not look at
/// fingerprints of layouts: an engine asks for sizes before it makes its stores.
void require_sizes(const RequestCacheOptions& options);

}  // namespace stateport::detail
