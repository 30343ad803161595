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

/// A grid that strides over tiles; every load of a thread's share of a tile is under way before its first store, in the
/// remainder of the tile too.
template <class Access, int threads, int blocks, int loads>
__global__ void __launch_bounds__(threads, blocks) roof_copy(const RoofTile* tiles, std::uint32_t count) {
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const RoofTile tile = tiles[t];
    for (std::uint32_t i = threadIdx.x; i < tile.words; i += threads * loads) {
      uint4 words[loads];
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) words[k] = Access::load(tile.src + i + k * threads);
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) Access::store(tile.dst + i + k * threads, words[k]);
    }
  }
}

}  // namespace stateport::perf
