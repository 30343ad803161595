// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../slot_workload.hpp"
#include "vendor_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// The copy kernel as one writes it for CUDA or HIP alone: tiles of 32 KiB, blocks of 256 threads that stride over
/// them, four 16-byte loads before the first store.
namespace stateport::perf {

struct TwinTile {
  uint4* dst;
  const uint4* src;
  std::uint32_t words;
};

inline std::vector<TwinTile> twin_tiles(const std::vector<Chunk>& chunks) {
  constexpr std::size_t tile_bytes = std::size_t{32} << 10;
  std::vector<TwinTile> tiles;
  for (const Chunk& chunk : chunks)
    for (std::size_t at = 0; at < chunk.bytes; at += tile_bytes)
      tiles.push_back({reinterpret_cast<uint4*>(chunk.dst + at), reinterpret_cast<const uint4*>(chunk.src + at),
                       static_cast<std::uint32_t>(std::min(tile_bytes, chunk.bytes - at) / sizeof(uint4))});
  return tiles;
}

constexpr int twin_threads = 256;

__global__ void __launch_bounds__(twin_threads) twin_copy(const TwinTile* tiles, std::uint32_t count) {
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const TwinTile tile = tiles[t];
    std::uint32_t i = threadIdx.x;
    for (; i + 3 * twin_threads < tile.words; i += 4 * twin_threads) {
      const uint4 first = tile.src[i];
      const uint4 second = tile.src[i + twin_threads];
      const uint4 third = tile.src[i + 2 * twin_threads];
      const uint4 fourth = tile.src[i + 3 * twin_threads];
      tile.dst[i] = first;
      tile.dst[i + twin_threads] = second;
      tile.dst[i + 2 * twin_threads] = third;
      tile.dst[i + 3 * twin_threads] = fourth;
    }
    for (; i < tile.words; i += twin_threads) tile.dst[i] = tile.src[i];
  }
}

}  // namespace stateport::perf
