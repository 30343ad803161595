// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/hash/block_hasher.hpp>

#include "serve/request_record.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace stateport::detail {

/// Hashes the blocks of prompts with the names of the prompts. Nothing allocates after construction.
class PromptHasher {
 public:
  explicit PromptHasher(const RequestCacheOptions& options);

  [[nodiscard]] std::size_t block_size() const noexcept {
    return static_cast<std::size_t>(hasher_.options().block_size_tokens);
  }
  /// The digest of the block `index` of a prompt. `names.media` ascends in first_token, and has all that begin in this
  /// block.
  [[nodiscard]] BlockDigest hash(const BlockDigest& parent, std::size_t index, std::span<const Token> block,
                                 const PromptNames& names);

 private:
  BlockHasher hasher_;
  std::vector<ExtraKey> keys_;  ///< of one block
};

/// The chained hashes of a growing list of tokens, one for each full block. Each block is hashed once.
class GrowingHashes {
 public:
  GrowingHashes() = default;
  /// For at most `blocks` blocks.
  explicit GrowingHashes(std::size_t blocks) {
    hashes_.keys.reserve(blocks);
    hashes_.prefixes.reserve(blocks);
  }

  void clear() noexcept {
    hashes_.clear();
    last_ = {};
  }
  /// Hashes the full blocks of `tokens` that are not hashed yet.
  void extend(PromptHasher& hasher, std::span<const Token> tokens, const PromptNames& names);

  [[nodiscard]] std::span<const BlockHash> keys() const noexcept { return hashes_.keys; }
  [[nodiscard]] std::span<const PrefixHash> prefixes() const noexcept { return hashes_.prefixes; }
  [[nodiscard]] std::size_t size() const noexcept { return hashes_.keys.size(); }

 private:
  PromptHashes hashes_;
  BlockDigest last_;
};

/// The blocks of the longest request.
[[nodiscard]] inline std::size_t request_blocks(const RequestCacheOptions& options) noexcept {
  return static_cast<std::size_t>(ceil_div(options.max_request_tokens, std::int64_t{options.block_size_tokens}));
}

}  // namespace stateport::detail
