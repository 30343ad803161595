// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/checksum.hpp>

#include <xxhash.h>

namespace stateport {

Checksum checksum(std::span<const std::byte> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {{hash.low64, hash.high64}};
}

}  // namespace stateport
