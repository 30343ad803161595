// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __HIP__
#include <hip/hip_runtime.h>
#endif

#include <cstdint>

/// The kernels of roof_kernels.hpp that CUDA and HIP share.
namespace stateport::perf {

struct RoofTile {
  uint4* dst;
  const uint4* src;
  std::uint32_t words;
};

/// A grid that strides over tiles; every load of a thread's share of a tile is under way before its first store, in the
/// remainder of the tile too.
template <int threads, int blocks, int loads>
__global__ void __launch_bounds__(threads, blocks) roof_copy(const RoofTile* tiles, std::uint32_t count) {
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const RoofTile tile = tiles[t];
    for (std::uint32_t i = threadIdx.x; i < tile.words; i += threads * loads) {
      uint4 words[loads];
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) words[k] = tile.src[i + k * threads];
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) tile.dst[i + k * threads] = words[k];
    }
  }
}

}  // namespace stateport::perf
