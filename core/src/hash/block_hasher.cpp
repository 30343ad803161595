// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/block_hasher.hpp>

#include <stateport/core/model/error.hpp>

#include "hash/sha256.hpp"

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <utility>

namespace stateport {
namespace {

void append_u64(std::vector<std::uint8_t>& message, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) message.push_back(static_cast<std::uint8_t>(value >> (8 * byte)));
}

void append_tokens(std::vector<std::uint8_t>& message, std::span<const std::int32_t> tokens) {
  const std::size_t first = message.size();
  message.resize(first + tokens.size_bytes());
  if constexpr (std::endian::native == std::endian::little) {
    if (!tokens.empty()) std::memcpy(message.data() + first, tokens.data(), tokens.size_bytes());
  } else {
    for (std::size_t i = 0; i < tokens.size_bytes(); ++i)
      message[first + i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(tokens[i / 4]) >> (8 * (i % 4)));
  }
}

/// Of the seed, the digest of the parent, a length and the tokens, and a length and the keys, each a kind, a position,
/// a length and an id.
std::size_t message_bytes(const BlockHasherOptions& options, std::size_t keys) noexcept {
  constexpr std::size_t number = 8;
  const std::size_t token_bytes = 4 * static_cast<std::size_t>(options.block_size_tokens);
  return sizeof(options.seed) + sizeof(BlockDigest) + 2 * number + token_bytes +
         keys * (1 + 2 * number + NameKey::inline_bytes_max);
}

BlockDigest xxh3_128(std::span<const std::uint8_t> message, std::uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(message.data(), message.size(), seed);
  BlockDigest digest;
  for (std::size_t byte = 0; byte < 8; ++byte) {
    digest.bytes[byte] = static_cast<std::uint8_t>(hash.low64 >> (8 * byte));
    digest.bytes[8 + byte] = static_cast<std::uint8_t>(hash.high64 >> (8 * byte));
  }
  return digest;
}

}  // namespace

BlockHasher::BlockHasher(const BlockHasherOptions& options) : options_(options) {
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "must be at least 1");
  if (options.kind == BlockHashKind::sha256) sha256_ = std::make_unique<detail::Sha256>();
  constexpr std::size_t usual_keys = 2;  // a tenant and an adapter
  reserve_keys(usual_keys);
}

BlockHasher::~BlockHasher() = default;
BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;
BlockHasher& BlockHasher::operator=(BlockHasher&&) noexcept = default;

void BlockHasher::reserve_keys(std::size_t keys) {
  message_.reserve(message_bytes(options_, keys));
}

BlockDigest BlockHasher::hash_block(const BlockDigest& parent, std::span<const std::int32_t> tokens,
                                    std::span<const ExtraKey> keys) {
  require(std::cmp_equal(tokens.size(), options_.block_size_tokens), "tokens", tokens.size(),
          "is not the number of tokens of a block");
  for (const ExtraKey& key : keys)
    require(key.first_token >= 0 && key.first_token < options_.block_size_tokens, "first_token", key.first_token,
            "is not inside the block");
  return digest(parent, tokens, keys, 0);
}

void BlockHasher::hash_prompt(std::span<const std::int32_t> tokens, std::span<const ExtraKey> keys, PromptHashes& out) {
  const auto block_size = static_cast<std::size_t>(options_.block_size_tokens);
  const std::size_t blocks = tokens.size() / block_size;
  std::int64_t previous = 0;
  for (const ExtraKey& key : keys) {
    require(key.first_token >= previous, "first_token", key.first_token, "must be ascending from 0");
    previous = key.first_token;
  }
  out.clear();
  out.keys.reserve(blocks);
  out.prefixes.reserve(blocks);
  BlockDigest parent;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto end = static_cast<std::int64_t>((block + 1) * block_size);
    std::size_t inside = 0;
    while (inside < keys.size() && keys[inside].first_token < end) ++inside;
    parent = digest(parent, tokens.subspan(block * block_size, block_size), keys.first(inside),
                    static_cast<std::int64_t>(block * block_size));
    keys = keys.subspan(inside);
    out.append(parent);
  }
}

BlockDigest BlockHasher::digest(const BlockDigest& parent, std::span<const std::int32_t> tokens,
                                std::span<const ExtraKey> keys, std::int64_t block_start) {
  message_.clear();
  if (sha256_ && options_.seed != 0) append_u64(message_, options_.seed);
  message_.insert(message_.end(), parent.bytes.begin(), parent.bytes.end());
  append_u64(message_, tokens.size());
  append_tokens(message_, tokens);
  const auto continues = [&](std::size_t i) {
    return i > 0 && keys[i].kind == keys[i - 1].kind && keys[i].first_token == keys[i - 1].first_token;
  };
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) count += !continues(i);
  append_u64(message_, count);
  for (std::size_t i = 0; i < keys.size();) {
    const ExtraKey& key = keys[i];
    NameKey id = key.id;
    while (++i < keys.size() && continues(i)) id = NameKey::both(id, keys[i].id);
    message_.push_back(static_cast<std::uint8_t>(key.kind));
    append_u64(message_, static_cast<std::uint64_t>(key.first_token - block_start));
    append_u64(message_, id.length());
    message_.insert(message_.end(), id.text().begin(), id.text().end());
  }
  return sha256_ ? (*sha256_)(message_) : xxh3_128(message_, options_.seed);
}

}  // namespace stateport
