// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "peers.hpp"
#include "vendor_calls.hpp"

#include <cstdint>

/// The kernel of count_differences, for CUDA and HIP.
namespace stateport::perf {

constexpr int compare_blocks = 1024;
constexpr int compare_threads = 256;

__global__ void __launch_bounds__(compare_threads)
    count_differing_words(const EqualRanges* ranges, std::uint32_t count, std::uint32_t* different) {
  for (std::uint32_t r = blockIdx.x; r < count; r += gridDim.x) {
    const auto* const left = reinterpret_cast<const uint4*>(ranges[r].left);
    const auto* const right = reinterpret_cast<const uint4*>(ranges[r].right);
    for (std::uint32_t i = threadIdx.x; i < ranges[r].words; i += compare_threads) {
      const uint4 a = left[i];
      const uint4 b = right[i];
      if (a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w) atomicAdd(different, 1u);
    }
  }
}

}  // namespace stateport::perf
