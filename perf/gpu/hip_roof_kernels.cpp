// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include "roof_copy.hpp"
#include "roof_kernels.hpp"

#include <hip/hip_runtime.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

namespace stateport::perf {
namespace {

void check(hipError_t error) {
  if (error != hipSuccess) throw std::runtime_error(hipGetErrorString(error));
}

hipStream_t native(const Stream& stream) {
  return static_cast<hipStream_t>(stream.native());
}

using Words = unsigned int __attribute__((ext_vector_type(4)));

__device__ uint4 load_past_caches(const uint4* at) {
  const Words words = __builtin_nontemporal_load(reinterpret_cast<const Words*>(at));
  return {words.x, words.y, words.z, words.w};
}
__device__ void store_past_caches(uint4* at, const uint4& value) {
  __builtin_nontemporal_store(Words{value.x, value.y, value.z, value.w}, reinterpret_cast<Words*>(at));
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
        if (i + k * threads < tile.words) words[k] = load_past_caches(tile.src + i + k * threads);
#pragma unroll
      for (int k = 0; k < loads; ++k)
        if (i + k * threads < tile.words) store_past_caches(tile.dst + i + k * threads, words[k]);
    }
  }
}

constexpr std::size_t tile_bytes_large = std::size_t{32} << 10;

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

int device_attribute(hipDeviceAttribute_t attribute) {
  int device = 0, value = 0;
  check(hipGetDevice(&device));
  check(hipDeviceGetAttribute(&value, attribute, device));
  return value;
}

using Kernel = void (*)(const RoofTile*, std::uint32_t);

PeerCopy shape(const std::string& name, Kernel kernel, const std::shared_ptr<Tiles>& tiles, int threads, int blocks) {
  const auto resident = static_cast<std::uint32_t>(blocks * device_attribute(hipDeviceAttributeMultiprocessorCount));
  return {name, [=](const Stream& stream) {
            kernel<<<std::min(resident, tiles->count), threads, 0, native(stream)>>>(tiles->table.as<RoofTile>(),
                                                                                     tiles->count);
            check(hipGetLastError());
          }};
}

}  // namespace

std::vector<PeerCopy> roof_copies(const std::vector<Chunk>& chunks) {
  const auto large = std::make_shared<Tiles>(chunks, tile_bytes_large);
  const auto small = std::make_shared<Tiles>(chunks, tile_bytes_large / 2);
  return {shape("256x4_twice_the_grid", roof_copy<256, 4, 4>, large, 256, 8),
          shape("256x4", roof_copy<256, 4, 4>, large, 256, 4),
          shape("256x4_small_tiles", roof_copy<256, 4, 4>, small, 256, 4),
          shape("256x8", roof_copy<256, 2, 8>, large, 256, 2),
          shape("512x4", roof_copy<512, 2, 4>, large, 512, 2),
          shape("512x8", roof_copy<512, 1, 8>, large, 512, 1),
          shape("1024x2", roof_copy<1024, 2, 2>, large, 1024, 2),
          shape("streaming_256x4", streaming_copy<256, 4, 4>, large, 256, 4),
          shape("streaming_256x8", streaming_copy<256, 2, 8>, large, 256, 2)};
}

}  // namespace stateport::perf
