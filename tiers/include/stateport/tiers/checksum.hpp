// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// XXH3-128 with seed 0: low word, high word.
struct Checksum {
  std::array<std::uint64_t, 2> words = {0, 0};
  friend constexpr bool operator==(const Checksum&, const Checksum&) noexcept = default;
};

/// Of any bytes, at any alignment.
[[nodiscard]] Checksum checksum(std::span<const std::byte> bytes) noexcept;

}  // namespace stateport
