// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "roof_copy.hpp"

#include <cstdint>

/// A copy by the engine that sm_90 and later have for it.
namespace stateport::perf {

inline constexpr std::uint32_t stage_bytes = 32u << 10;

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// One thread of a block feeds `stages` pieces of shared memory, each as large as a tile: the copy engine fills one
/// while it empties another. Loads run `stages - 1` tiles ahead of stores.
template <int stages>
__global__ void __launch_bounds__(32)
    bulk_copy([[maybe_unused]] const RoofTile* tiles, [[maybe_unused]] std::uint32_t count, std::uint32_t*) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) std::uint64_t filled[stages];
  if (threadIdx.x != 0) return;
  for (int s = 0; s < stages; ++s) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&filled[s])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // the copy engine sees the barriers
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const std::uint32_t mine = blockIdx.x < count ? (count - 1 - blockIdx.x) / gridDim.x + 1 : 0;
  constexpr std::uint32_t ahead = stages - 1;
  for (std::uint32_t n = 0; n < mine + ahead; ++n) {
    if (n < mine) {
      const RoofTile tile = tiles[blockIdx.x + n * gridDim.x];
      const std::uint32_t stage = shared_address(shared + n % stages * stage_bytes);
      const std::uint32_t barrier = shared_address(&filled[n % stages]);
      // The stage is free once the store of `stages` tiles ago, the youngest that can be waited for, has read it.
      if (n >= stages) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(tile.words * 16) : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(stage),
          "l"(tile.src), "r"(tile.words * 16), "r"(barrier)
          : "memory");
    }
    if (n < ahead) continue;
    const std::uint32_t m = n - ahead;
    const RoofTile tile = tiles[blockIdx.x + m * gridDim.x];
    std::uint32_t is_full = 0;
    while (is_full == 0)
      asm volatile(
          "{\n.reg .pred full;\nmbarrier.try_wait.parity.shared.b64 full, [%1], %2;\nselp.u32 %0, 1, 0, full;\n}"
          : "=r"(is_full)
          : "r"(shared_address(&filled[m % stages])), "r"(m / stages & 1)
          : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(tile.dst),
                 "r"(shared_address(shared + m % stages * stage_bytes)), "r"(tile.words * 16)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

}  // namespace stateport::perf
