// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/megatron_block_hash.hpp>

#include <stateport/core/model/error.hpp>

#include "hash/sha256.hpp"

#include <utility>

namespace stateport {

MegatronBlockHasher::MegatronBlockHasher(std::int32_t block_size_tokens)
    : block_size_(static_cast<std::size_t>(block_size_tokens)) {
  require(block_size_tokens >= 1, "block_size_tokens", block_size_tokens, "must be at least 1");
  sha256_ = std::make_unique<detail::Sha256>();
  message_.reserve(sizeof(BlockDigest) + 8 * block_size_);
}

MegatronBlockHasher::~MegatronBlockHasher() = default;

BlockDigest MegatronBlockHasher::salted_root(std::string_view salt) {
  // The terminating zero byte is part of the message.
  static constexpr std::string_view domain{"megatron-prefix-cache-salt-v1\0", 30};
  message_.assign(domain.begin(), domain.end());
  message_.insert(message_.end(), salt.begin(), salt.end());
  return (*sha256_)(message_);
}

BlockDigest MegatronBlockHasher::hash_block(const BlockDigest& parent, std::span<const std::int64_t> tokens) {
  require(tokens.size() == block_size_, "tokens", tokens.size(), "is not the number of tokens of a block");
  message_.assign(parent.bytes.begin(), parent.bytes.end());
  for (const std::int64_t token : tokens)
    for (int byte = 0; byte < 8; ++byte)
      message_.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(token) >> (8 * byte)));
  return (*sha256_)(message_);
}

void MegatronBlockHasher::hash_prompt(std::span<const std::int64_t> tokens, PromptHashes& out,
                                      const BlockDigest& root) {
  out.clear();
  BlockDigest parent = root;
  for (; tokens.size() >= block_size_; tokens = tokens.subspan(block_size_)) {
    parent = hash_block(parent, tokens.first(block_size_));
    out.append(parent);
  }
}

}  // namespace stateport
