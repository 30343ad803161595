// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport {
struct RequestCacheOptions;
}

namespace stateport::detail {

/// Of each group of an index in columns: the null block, and the last one, which is never handed out.
inline constexpr std::int32_t reserved_state_blocks = 2;

/// Throws InvalidArgument for sizes, and for combinations of options, that no RequestCache can have. Does not look at
/// fingerprints of layouts: an engine asks for sizes before it makes its stores.
void require_sizes(const RequestCacheOptions& options);

}  // namespace stateport::detail
