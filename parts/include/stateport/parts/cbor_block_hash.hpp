// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace stateport {

namespace detail {
class Sha256;
}

/// A value that vLLM puts into a block's extra keys: null, an integer, a text or a list of values.
struct CborValue {
  std::variant<std::monostate, std::int64_t, std::string, std::vector<CborValue>> value;
};

/// Block hashes equal to vLLM's `sha256_cbor`: SHA-256 over canonical CBOR (RFC 8949: shortest integers, definite
/// lengths).
///
///     root  = H(text seed)
///     block = H([bytes(32) parent, [tokens], null or [extra keys]])
///
/// Not thread-safe.
class CborBlockHasher {
 public:
  using GroupKey = std::array<std::uint8_t, 36>;

  CborBlockHasher();
  ~CborBlockHasher();

  /// The parent of a prompt's first block. `seed`: in vLLM the text of PYTHONHASHSEED.
  [[nodiscard]] BlockDigest root(std::string_view seed);
  /// `extra_keys` empty = null. Throws InvalidArgument for a negative token.
  [[nodiscard]] BlockDigest hash_block(const BlockDigest& parent, std::span<const std::int64_t> tokens,
                                       std::span<const CborValue> extra_keys = {});
  /// The key of a block in one KV cache group: digest | group id, big-endian. Throws InvalidArgument for group < 0.
  [[nodiscard]] static GroupKey with_group(const BlockDigest& digest, std::int32_t group);

 private:
  std::unique_ptr<detail::Sha256> sha256_;
  std::vector<std::uint8_t> message_;
};

}  // namespace stateport
