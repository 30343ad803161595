// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/tokens.hpp>

#include <cstdint>
#include <span>

namespace stateport {

/// A change of the KV of a PrefixTree, for routers: the events that vLLM and SGLang publish (block stored, block
/// removed, all blocks cleared). A block is a page of the tree, named by the digest that BlockHasher gives the same
/// tokens with the namespace's salt and extra key as extra keys of their first block.
///
/// The spans are valid during the call alone.
struct KvEvent {
  enum class Kind : std::uint8_t {
    stored,   ///< blocks were added; their parent was added before and is still there
    removed,  ///< blocks were removed; no block that follows them is left
    cleared,  ///< all blocks were removed
  };
  Kind kind = Kind::cleared;
  std::span<const BlockDigest> blocks;  ///< consecutive blocks of one path
  BlockDigest parent;                   ///< stored: the block before the first; BlockDigest{} where a prompt begins
  std::span<const Token> tokens;        ///< stored: of all blocks
  Namespace name_space;                 ///< stored
};

}  // namespace stateport
