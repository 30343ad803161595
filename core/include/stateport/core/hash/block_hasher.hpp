// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/name_key.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {

namespace detail {
class Sha256;
}

/// Something beside the tokens that a block's content depends on. It enters the hash of the block in which its scope
/// begins, and through the chain every later block.
struct ExtraKey {
  enum class Kind : std::uint8_t { tenant_salt = 1, adapter = 2, media = 3 };
  Kind kind = Kind::tenant_salt;
  NameKey id;
  std::int64_t first_token = 0;  ///< where its scope begins; 0 for salts and adapters of a whole request
};

/// sha256 resists an attacker who chooses prompts. xxh3_128 is faster; an attacker can find collisions of it unless
/// BlockHasherOptions::seed is a secret, so that without one it is for a single tenant only.
enum class BlockHashKind : std::uint8_t { sha256, xxh3_128 };

struct BlockHasherOptions {
  BlockHashKind kind = BlockHashKind::sha256;
  std::int32_t block_size_tokens = 16;
  /// Enters every hash, so that caches with different seeds share nothing, and caches that share files or a store need
  /// equal ones. 0: none. Use a secret random value where tenants are not trusted. With xxh3_128 it keeps a tenant from
  /// finding two prompts of one hash; with sha256 from choosing prompts for places in a table, and from guessing the
  /// names of files and objects.
  std::uint64_t seed = 0;
};

/// Chained hashes of the blocks of a prompt: H(parent || framed tokens || framed extra keys).
///
/// The message of one block, integers little-endian; every part has its length before it, so no two inputs give the
/// same bytes, but for keys of one kind at one token, which enter as one (NameKey::both):
///
///     seed u64 (sha256, if it is not 0) | parent digest [32] | token count u64 | tokens i32 … | extra keys u64 |
///         per extra key: kind u8 | offset of its first token in the block u64 | length u64 | NameKey::text()
///
/// xxh3_128 takes the seed as its own. The parent of a first block is BlockDigest{}. Hashing allocates only for a block
/// with more extra keys than every block before it and than reserve_keys() made room for. Not thread-safe: one hasher
/// per thread.
class BlockHasher {
 public:
  /// Throws InvalidArgument for a block size < 1.
  explicit BlockHasher(const BlockHasherOptions& options = {});
  ~BlockHasher();
  BlockHasher(BlockHasher&&) noexcept;
  BlockHasher& operator=(BlockHasher&&) noexcept;

  [[nodiscard]] const BlockHasherOptions& options() const noexcept { return options_; }

  /// Hashing a block with at most `keys` extra keys does not allocate from now on.
  void reserve_keys(std::size_t keys);

  /// One block. `tokens` has block_size_tokens elements; first_token of the keys counts from the start of the block.
  /// Throws InvalidArgument for another number of tokens or a key outside the block.
  [[nodiscard]] BlockDigest hash_block(const BlockDigest& parent, std::span<const std::int32_t> tokens,
                                       std::span<const ExtraKey> keys = {});

  /// Every full block of a prompt, into `out` (its old content is gone). `keys` is ascending in first_token, which
  /// counts from the start of the prompt; keys after the last full block have no effect. Throws InvalidArgument.
  void hash_prompt(std::span<const std::int32_t> tokens, std::span<const ExtraKey> keys, PromptHashes& out);

 private:
  [[nodiscard]] BlockDigest digest(const BlockDigest& parent, std::span<const std::int32_t> tokens,
                                   std::span<const ExtraKey> keys, std::int64_t block_start);

  BlockHasherOptions options_;
  std::unique_ptr<detail::Sha256> sha256_;
  std::vector<std::uint8_t> message_;
};

}  // namespace stateport
