// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vendor_calls.hpp"

#include <cstdint>

/// The kernels of roof_kernels.hpp that CUDA and HIP share.
namespace stateport::perf {

struct RoofTile {
  uint4* dst;
  const uint4* src;
  std::uint32_t words;
};

/// How a kernel reads and writes memory.
struct Cached {
  static __device__ uint4 load(const uint4* at) { return *at; }
  static __device__ void store(uint4* at, const uint4& value) { *at = value; }
};
struct PastCaches {
#ifdef __HIP__
  using Words = unsigned int __attribute__((ext_vector_type(4)));
  static __device__ uint4 load(const uint4* at) {
    const Words words = __builtin_nontemporal_load(reinterpret_cast<const Words*>(at));
    return {words.x, words.y, words.z, words.w};
  }
  static __device__ void store(uint4* at, const uint4& value) {
    __builtin_nontemporal_store(Words{value.x, value.y, value.z, value.w}, reinterpret_cast<Words*>(at));
  }
#else
  static __device__ uint4 load(const uint4* at) {
    return __ldcs(at);
  }
  static __device__ void store(uint4* at, const uint4& value) {
    __stcs(at, value);
  }
#endif
};

/// A thread's words of a tile: every load is under way before the first store.
template <class Access, int threads, int loads>
__device__ void roof_words(const RoofTile& tile, std::uint32_t first) {
  uint4 words[loads];
#pragma unroll
  for (int k = 0; k < loads; ++k)
    if (first + k * threads < tile.words) words[k] = Access::load(tile.src + first + k * threads);
#pragma unroll
  for (int k = 0; k < loads; ++k)
    if (first + k * threads < tile.words) Access::store(tile.dst + first + k * threads, words[k]);
}
template <class Access, int threads, int loads>
__device__ void roof_tile(const RoofTile& tile) {
  for (std::uint32_t i = threadIdx.x; i < tile.words; i += threads * loads) roof_words<Access, threads, loads>(tile, i);
}

/// A block for each tile of at most threads × loads words: the device starts blocks in order.
template <class Access, int threads, int loads>
__global__ void __launch_bounds__(threads) roof_once(const RoofTile* tiles, std::uint32_t, std::uint32_t*) {
  const RoofTile tile = tiles[blockIdx.x];
  roof_words<Access, threads, loads>(tile, threadIdx.x);
}

/// A block for each tile, which goes round in it.
template <class Access, int threads, int loads>
__global__ void __launch_bounds__(threads) roof_looped(const RoofTile* tiles, std::uint32_t, std::uint32_t*) {
  const RoofTile tile = tiles[blockIdx.x];
  roof_tile<Access, threads, loads>(tile);
}

/// A grid that strides over tiles.
template <class Access, int threads, int blocks, int loads>
__global__ void __launch_bounds__(threads, blocks)
    roof_strided(const RoofTile* tiles, std::uint32_t count, std::uint32_t*) {
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const RoofTile tile = tiles[t];
    roof_tile<Access, threads, loads>(tile);
  }
}

/// A grid whose blocks claim the next tile when they begin their last one. `claimed`: 0 before the launch.
template <class Access, int threads, int blocks, int loads>
__global__ void __launch_bounds__(threads, blocks)
    roof_claimed(const RoofTile* tiles, std::uint32_t count, std::uint32_t* claimed) {
  __shared__ std::uint32_t next[2];
  std::uint32_t turn = 0;
  for (std::uint32_t t = blockIdx.x; t < count;) {
    const std::uint32_t claim = threadIdx.x == 0 ? gridDim.x + atomicAdd(claimed, 1u) : 0;
    const RoofTile tile = tiles[t];
    roof_tile<Access, threads, loads>(tile);
    if (threadIdx.x == 0) next[turn] = claim;
    __syncthreads();
    t = next[turn];
    turn ^= 1;
  }
}

}  // namespace stateport::perf
