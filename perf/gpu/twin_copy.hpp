// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../slot_workload.hpp"
#include "vendor_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// The copy kernel as one writes it for CUDA or HIP alone: a block of 1,024 threads for each tile of 32 KiB, whose
/// threads load two words of 16 bytes before they store the first.
namespace stateport::perf {

constexpr unsigned twin_threads = 1024;

struct TwinTile {
  uint4* dst;
  const uint4* src;
  std::uint32_t words;
};

inline std::vector<TwinTile> twin_tiles(const std::vector<Chunk>& chunks) {
  constexpr std::size_t tile_bytes = 2 * twin_threads * sizeof(uint4);
  std::vector<TwinTile> tiles;
  for (const Chunk& chunk : chunks)
    for (std::size_t at = 0; at < chunk.bytes; at += tile_bytes)
      tiles.push_back({reinterpret_cast<uint4*>(chunk.dst + at), reinterpret_cast<const uint4*>(chunk.src + at),
                       static_cast<std::uint32_t>(std::min(tile_bytes, chunk.bytes - at) / sizeof(uint4))});
  return tiles;
}

/// Words [0, words), at most two for each thread of the block.
__device__ inline void twin_words(uint4* dst, const uint4* src, std::uint32_t words) {
  const std::uint32_t i = threadIdx.x, j = threadIdx.x + twin_threads;
  uint4 first{}, second{};
  if (i < words) first = src[i];
  if (j < words) second = src[j];
  if (i < words) dst[i] = first;
  if (j < words) dst[j] = second;
}

__global__ void __launch_bounds__(twin_threads) twin_copy(const TwinTile* tiles) {
  const TwinTile tile = tiles[blockIdx.x];
  twin_words(tile.dst, tile.src, tile.words);
}

}  // namespace stateport::perf
