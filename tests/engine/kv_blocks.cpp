// SPDX-License-Identifier: Apache-2.0
#include "kv_blocks.hpp"

namespace stateport::engine {

std::int32_t kv_pool_blocks(const CacheOptions& options) {
  constexpr std::int32_t dummy = 1;
  return (options.kv_tokens + options.max_tokens) / options.block_size + dummy;
}

bool grow_kv(BlockPool& pool, std::int64_t tokens, std::int32_t block_size, std::vector<BlockId>& blocks,
             std::vector<KvIndex>& kv) {
  const std::size_t held = blocks.size();
  const auto needed = static_cast<std::size_t>((tokens + block_size - 1) / block_size);
  if (needed > held) {
    blocks.resize(needed);
    if (!pool.allocate(std::span(blocks).subspan(held))) {
      blocks.resize(held);
      return false;
    }
  }
  while (std::ssize(kv) < tokens) {
    const auto position = static_cast<std::int32_t>(kv.size());
    kv.push_back(blocks[static_cast<std::size_t>(position / block_size)].value() * block_size + position % block_size);
  }
  return true;
}

void register_chain(BlockPool& pool, std::span<const BlockId> blocks, std::span<const BlockHash> keys,
                    std::size_t first, std::size_t end) {
  std::vector<BlockHash> parents;
  for (std::size_t i = first; i < end; ++i) parents.push_back(i == 0 ? root_hash : keys[i - 1]);
  pool.register_hashes(blocks.subspan(first, end - first), keys.subspan(first, end - first), parents);
}

}  // namespace stateport::engine
