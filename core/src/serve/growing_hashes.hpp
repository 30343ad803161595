// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hasher.hpp>

#include "serve/request_record.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace stateport::detail {

/// The chained hashes of a growing list of tokens, one for each full block. Each block is hashed once.
class GrowingHashes {
 public:
  void clear() noexcept {
    hashes_.clear();
    last_ = {};
  }
  /// Hashes the full blocks of `tokens` that are not hashed yet.
  void extend(BlockHasher& hasher, std::span<const Token> tokens, const PromptNames& names,
              std::vector<ExtraKey>& scratch);

  [[nodiscard]] std::span<const BlockHash> keys() const noexcept { return hashes_.keys; }
  [[nodiscard]] std::span<const PrefixHash> prefixes() const noexcept { return hashes_.prefixes; }
  [[nodiscard]] std::size_t size() const noexcept { return hashes_.keys.size(); }

 private:
  PromptHashes hashes_;
  BlockDigest last_;
};

}  // namespace stateport::detail
