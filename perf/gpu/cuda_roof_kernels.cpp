// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include "roof_copy.hpp"
#include "roof_kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

namespace stateport::perf {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

/// As roof_copy, past the caches.
template <int threads, int blocks, int loads>
__global__ void __launch_bounds__(threads, blocks) streaming_copy(const RoofTile* tiles, std::uint32_t count) {
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const RoofTile tile = tiles[t];
    for (std::uint32_t i = threadIdx.x; i < tile.words; i += threads * loads) {
      uint4 words[loads];
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) words[k] = __ldcs(tile.src + i + k * threads);
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) __stcs(tile.dst + i + k * threads, words[k]);
    }
  }
}

constexpr std::uint32_t stage_bytes = 32u << 10;

__device__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// One thread of a block feeds `stages` pieces of shared memory, each as large as a tile: the copy engine fills one
/// while it empties another. Loads run `stages - 1` tiles ahead of stores.
template <int stages>
__global__ void __launch_bounds__(32)
    bulk_copy([[maybe_unused]] const RoofTile* tiles, [[maybe_unused]] std::uint32_t count) {
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
      // What the stage held must have been read by the store of `stages` tiles ago, the youngest one that there is.
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

/// Tiles of at most `tile_bytes`, those of a chunk nearly equal, in device memory.
struct Tiles {
  Tiles(const std::vector<Chunk>& chunks, std::size_t tile_bytes) {
    std::vector<RoofTile> tiles;
    for (const Chunk& chunk : chunks) {
      const std::size_t words = chunk.bytes / sizeof(uint4), pieces = (chunk.bytes + tile_bytes - 1) / tile_bytes;
      const std::size_t each = (words + pieces - 1) / pieces;
      for (std::size_t at = 0; at < words; at += each)
        tiles.push_back({reinterpret_cast<uint4*>(chunk.dst) + at, reinterpret_cast<const uint4*>(chunk.src) + at,
                         static_cast<std::uint32_t>(std::min(each, words - at))});
    }
    count = static_cast<std::uint32_t>(tiles.size());
    table = Buffer(resource, tiles.size() * sizeof(RoofTile));
    copy_bytes(Stream::default_stream(), table.data(), tiles.data(), table.size_bytes());
    Stream::default_stream().synchronize();
  }
  DeviceResource resource;
  Buffer table;
  std::uint32_t count = 0;
};

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

using Kernel = void (*)(const RoofTile*, std::uint32_t);

PeerCopy shape(const std::string& name, Kernel kernel, const std::shared_ptr<Tiles>& tiles, int threads, int blocks,
               std::uint32_t shared_bytes = 0) {
  if (shared_bytes > 0)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)));
  const auto resident = static_cast<std::uint32_t>(blocks * device_attribute(cudaDevAttrMultiProcessorCount));
  return {name, [=](const Stream& stream) {
            kernel<<<std::min(resident, tiles->count), threads, shared_bytes, native(stream)>>>(
                tiles->table.as<RoofTile>(), tiles->count);
            check(cudaGetLastError());
          }};
}

}  // namespace

std::vector<PeerCopy> roof_copies(const std::vector<Chunk>& chunks) {
  const auto large = std::make_shared<Tiles>(chunks, stage_bytes);
  const auto small = std::make_shared<Tiles>(chunks, stage_bytes / 2);
  std::vector<PeerCopy> shapes = {shape("256x4_twice_the_grid", roof_copy<256, 4, 4>, large, 256, 8),
                                  shape("256x4", roof_copy<256, 4, 4>, large, 256, 4),
                                  shape("256x4_small_tiles", roof_copy<256, 4, 4>, small, 256, 4),
                                  shape("256x8", roof_copy<256, 2, 8>, large, 256, 2),
                                  shape("512x4", roof_copy<512, 2, 4>, large, 512, 2),
                                  shape("512x8", roof_copy<512, 1, 8>, large, 512, 1),
                                  shape("1024x2", roof_copy<1024, 2, 2>, large, 1024, 2),
                                  shape("streaming_256x4", streaming_copy<256, 4, 4>, large, 256, 4),
                                  shape("streaming_256x8", streaming_copy<256, 2, 8>, large, 256, 2)};
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {
    shapes.push_back(shape("bulk_3", bulk_copy<3>, large, 32, 2, 3 * stage_bytes));
    shapes.push_back(shape("bulk_6", bulk_copy<6>, large, 32, 1, 6 * stage_bytes));
  }
  return shapes;
}

}  // namespace stateport::perf
