// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>

namespace stateport::replay {

/// Names a token prefix by its block identities. Independent of the hashes that the cache uses, so that a state that
/// was found through a wrong hash is found out. 0 is the empty prefix, whose state is zero.
using Content = std::uint64_t;
inline constexpr Content empty_content = 0;

/// The prefix `before` and one more block.
[[nodiscard]] constexpr Content append_block(Content before, BlockIdentity identity) noexcept {
  return mix(before ^ mix(identity + 0x9e3779b97f4a7c15U)) | 1;
}

}  // namespace stateport::replay
