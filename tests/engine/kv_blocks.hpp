// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "cache.hpp"

/// What every cache with KV in blocks of a BlockPool does the same way.
namespace stateport::engine {

/// Blocks for the pool. Two requests that compute one prefix at the same time both keep their blocks. Once the first
/// has gone, each of its blocks may still be the parent of a block of the second, and is not evicted before that: so
/// much more room than a request needs is taken to run one alone.
[[nodiscard]] std::int32_t kv_pool_blocks(const CacheOptions& options);

/// Blocks for tokens [0, tokens), beyond those in `blocks`. False, and nothing changed: there are too few.
[[nodiscard]] bool grow_kv(BlockPool& pool, std::int64_t tokens, std::int32_t block_size, std::vector<BlockId>& blocks,
                           std::vector<KvIndex>& kv);

/// Makes the blocks [first, end) of a row findable; keys are those of the whole row.
void register_chain(BlockPool& pool, std::span<const BlockId> blocks, std::span<const BlockHash> keys,
                    std::size_t first, std::size_t end);

}  // namespace stateport::engine
