// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace stateport {

/// 128 bits that name a token prefix (with its namespace): the leading half of a chained block digest.
struct PrefixHash {
  std::array<std::uint64_t, 2> words = {0, 0};
  friend constexpr bool operator==(const PrefixHash&, const PrefixHash&) noexcept = default;
};

}  // namespace stateport
