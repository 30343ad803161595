// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::test {

/// Different block hashes whose 32 mixed bits in a BlockHashIndex are `mixed`: it cannot tell them apart without asking
/// for the whole hash. The index multiplies by an odd constant and takes the high half; this divides by the constant.
[[nodiscard]] inline std::vector<BlockHash> colliding_hashes(std::uint32_t mixed, std::size_t count) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;
  std::uint64_t inverse = factor;  // right in its low 3 bits; each step of Newton's method doubles them
  for (int right_bits = 3; right_bits < 64; right_bits *= 2) inverse *= 2 - factor * inverse;
  std::vector<BlockHash> hashes;
  for (std::uint64_t low = 0; hashes.size() < count; ++low) {
    const auto hash = static_cast<BlockHash>((std::uint64_t{mixed} << 32 | low) * inverse);
    if (hash > 0) hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace stateport::test
