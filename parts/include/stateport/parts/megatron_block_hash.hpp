// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace stateport {

namespace detail {
class Sha256;
}

/// Block hashes equal to those of Megatron-LM's dynamic inference (its SHA-256 chain, 2026), for caches shared with it.
///
///     digest = SHA-256(parent digest [32] | tokens as i64, little-endian), key = first 8 bytes mod (2^63 - 1) + 1
///
/// The first parent is 32 zero bytes, or SHA-256("megatron-prefix-cache-salt-v1\0" | salt). Unlike BlockHasher it
/// frames nothing. Not thread-safe.
class MegatronBlockHasher {
 public:
  /// Throws InvalidArgument for a block size < 1.
  explicit MegatronBlockHasher(std::int32_t block_size_tokens);
  ~MegatronBlockHasher();

  /// The first parent of a salted request.
  [[nodiscard]] BlockDigest salted_root(std::string_view salt);
  /// `tokens` has block_size_tokens elements; throws InvalidArgument otherwise. The key is digest.key().
  [[nodiscard]] BlockDigest hash_block(const BlockDigest& parent, std::span<const std::int64_t> tokens);
  /// Every full block of a prompt, into `out` (its old content is gone).
  void hash_prompt(std::span<const std::int64_t> tokens, PromptHashes& out, const BlockDigest& root = {});

 private:
  std::size_t block_size_;
  std::unique_ptr<detail::Sha256> sha256_;
  std::vector<std::uint8_t> message_;
};

}  // namespace stateport
