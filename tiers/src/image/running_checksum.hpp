// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/checksum.hpp>

#include <xxhash.h>

#include <cstddef>
#include <span>

namespace stateport {

/// A checksum of bytes that come in pieces. Not copied: xxHash's state is 576 bytes, aligned to 64.
class RunningChecksum {
 public:
  RunningChecksum() noexcept { XXH3_128bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) noexcept { XXH3_128bits_update(&state_, bytes.data(), bytes.size()); }
  [[nodiscard]] Checksum finish() const noexcept {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {{hash.low64, hash.high64}};
  }
  void restart() noexcept { XXH3_128bits_reset(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace stateport
