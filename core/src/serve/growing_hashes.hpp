// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hasher.hpp>

#include "containers/ready_vector.hpp"
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
  /// Makes room for the hashes of so many blocks.
  void reserve(std::size_t blocks) {
    reserve_amortised(hashes_.keys, blocks);
    reserve_amortised(hashes_.prefixes, blocks);
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

/// Makes room in both for the names of a prompt, whichever block they are in.
void reserve_keys(BlockHasher& hasher, const PromptNames& names, std::vector<ExtraKey>& scratch);

}  // namespace stateport::detail
