// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// Hashes numbers field by field, so that neither padding nor byte order reaches the result: equal on every machine.
class FieldHash {
 public:
  explicit FieldHash(std::uint64_t seed) noexcept : hash_(seed) {}

  void mix(std::int64_t field) noexcept {
    unsigned char bytes[8];
    for (unsigned i = 0; i < 8; ++i)
      bytes[i] = static_cast<unsigned char>(static_cast<std::uint64_t>(field) >> (8 * i));
    hash_ = XXH3_64bits_withSeed(bytes, sizeof bytes, hash_);
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_;
};

}  // namespace stateport::detail
